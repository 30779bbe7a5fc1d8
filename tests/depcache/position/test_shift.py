# SPDX-License-Identifier: Apache-2.0
"""Moving a key equals rotating it for the other position in the first place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="depcache.position needs torch")

from depcache.position.shift import shift_keys, shift_keys_ref  # noqa: E402
from tests.helpers.tolerance import ATOL_BY_DTYPE, RTOL_BY_DTYPE  # noqa: E402

HEAD_DIM, NUM_HEADS, MAX_POSITION = 32, 2, 4096

ROPE_TYPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
}

positions = st.lists(st.integers(0, MAX_POSITION - 1), min_size=1, max_size=8)


def make_table(num_rotary: int, scale: float = 1.0) -> Any:
    """(MAX_POSITION, num_rotary): cosines, then sines, of the default frequencies."""
    inv_freq = 10000.0 ** -(np.arange(0, num_rotary, 2) / num_rotary)
    angles = np.arange(MAX_POSITION)[:, None] * inv_freq
    table = scale * np.concatenate((np.cos(angles), np.sin(angles)), axis=1)
    return torch.from_numpy(table).float()


def rotate(keys: np.ndarray, at: np.ndarray, num_rotary: int, is_neox: bool) -> np.ndarray:
    """Rotary embedding channel pair by channel pair, in float64."""
    rotated = keys.astype(np.float64)
    for pair in range(num_rotary // 2):
        first, second = (pair, pair + num_rotary // 2) if is_neox else (2 * pair, 2 * pair + 1)
        angle = at * 10000.0 ** (-2 * pair / num_rotary)
        turned = (keys[..., first] + 1j * keys[..., second]) * np.exp(1j * angle)[:, None]
        rotated[..., first], rotated[..., second] = turned.real, turned.imag
    return rotated


def random_keys(num_tokens: int) -> Any:
    generator = torch.Generator().manual_seed(num_tokens)
    return torch.randn(num_tokens, NUM_HEADS, HEAD_DIM, generator=generator)


@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "interleaved"])
@pytest.mark.parametrize("rotary_dim", [HEAD_DIM, 20, 2])
@settings(max_examples=40, deadline=None)
@given(data=st.data(), homes=positions)
def test_moved_keys_are_the_keys_of_the_other_position(
    is_neox: bool, rotary_dim: int, data: st.DataObject, homes: list[int]
) -> None:
    placed = data.draw(st.permutations(homes) | st.just([MAX_POSITION - 1 - p for p in homes]))
    raw = random_keys(len(homes)).numpy()
    at_home = rotate(raw, np.array(homes), rotary_dim, is_neox)
    moved = shift_keys(
        torch.from_numpy(at_home).float(),
        torch.tensor(homes),
        torch.tensor(placed),
        make_table(rotary_dim),
        rotary_dim=rotary_dim,
        is_neox=is_neox,
    )
    expected = rotate(raw, np.array(placed), rotary_dim, is_neox)
    np.testing.assert_allclose(moved.numpy(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("rope_type", ROPE_TYPES)
def test_moved_keys_are_huggingfaces_keys_for_every_scaling(rope_type: str) -> None:
    """With YaRN's attention factor too: it is in the table twice and in the key once."""
    embedding, table = huggingface_rope(rope_type)
    raw = random_keys(64)
    homes, placed = torch.randint(0, MAX_POSITION, (2, 64), generator=torch.manual_seed(0))
    moved = shift_keys(
        huggingface_rotate(embedding, raw, homes),
        homes,
        placed,
        table,
        rotary_dim=HEAD_DIM,
        is_neox=True,
    )
    expected = huggingface_rotate(embedding, raw, placed)
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-5)
    if rope_type == "yarn":
        assert embedding.attention_scaling > 1.1, "or the factor was not tested"


@pytest.mark.parametrize("rope_type", ROPE_TYPES)
@pytest.mark.parametrize("shift", [-700, -1, 0, 1, 3000])
def test_the_reference_moves_as_huggingface_rotates(rope_type: str, shift: int) -> None:
    embedding, table = huggingface_rope(rope_type)
    raw = random_keys(64)
    homes = torch.arange(900, 964)
    at_home = huggingface_rotate(embedding, raw, homes)
    reference = shift_keys_ref(at_home, shift, embedding.inv_freq)
    # HuggingFace rounds an angle of 4,000 radians to float32, the reference one of `shift`.
    expected = huggingface_rotate(embedding, raw, homes + shift)
    torch.testing.assert_close(reference, expected, rtol=0, atol=1e-3)
    moved = shift_keys(at_home, homes, homes + shift, table, rotary_dim=HEAD_DIM, is_neox=True)
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(stops=st.lists(st.integers(0, MAX_POSITION - 1), min_size=3, max_size=3))
def test_moving_twice_is_moving_once(stops: list[int]) -> None:
    first, second, third = (torch.tensor([stop]) for stop in stops)
    keys, table = random_keys(1), make_table(HEAD_DIM)
    move = {"rotary_dim": HEAD_DIM, "is_neox": True}
    twice = shift_keys(shift_keys(keys, first, second, table, **move), second, third, table, **move)
    once = shift_keys(keys, first, third, table, **move)
    torch.testing.assert_close(twice, once, rtol=0, atol=1e-5)


def test_a_key_that_stays_where_it_is_does_not_change() -> None:
    keys, at = random_keys(16), torch.arange(0, 3200, 200)
    moved = shift_keys(keys, at, at, make_table(HEAD_DIM), rotary_dim=HEAD_DIM, is_neox=True)
    torch.testing.assert_close(moved, keys, rtol=0, atol=1e-6)


@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "interleaved"])
def test_channels_behind_the_rotary_ones_are_copied_bit_for_bit(is_neox: bool) -> None:
    keys = random_keys(4)
    at, to = torch.tensor([0, 5, 9, 100]), torch.tensor([7, 5, 1, 3000])
    moved = shift_keys(keys, at, to, make_table(8), rotary_dim=8, is_neox=is_neox)
    assert torch.equal(moved[..., 8:], keys[..., 8:])
    assert not torch.allclose(moved[0, :, :8], keys[0, :, :8])


def test_each_token_moves_by_its_own_distance() -> None:
    keys, table = random_keys(3), make_table(HEAD_DIM)
    at, to = torch.tensor([5, 6, 7]), torch.tensor([50, 6, 1])
    move = {"rotary_dim": HEAD_DIM, "is_neox": True}
    together = shift_keys(keys, at, to, table, **move)
    for i in range(3):
        one = slice(i, i + 1)
        assert torch.equal(together[one], shift_keys(keys[one], at[one], to[one], table, **move))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_copy_has_the_keys_type_and_the_keys_stay_as_they_were(dtype: str) -> None:
    keys = random_keys(8).to(getattr(torch, dtype))
    before = keys.clone()
    at, to = torch.arange(8), torch.arange(8) + 4000
    moved = shift_keys(keys, at, to, make_table(HEAD_DIM), rotary_dim=HEAD_DIM, is_neox=True)
    assert moved.dtype == keys.dtype
    assert torch.equal(keys, before)
    exact = rotate(keys.double().numpy(), np.full(8, 4000), HEAD_DIM, is_neox=True)
    np.testing.assert_allclose(
        moved.double().numpy(), exact, rtol=RTOL_BY_DTYPE[dtype], atol=2 * ATOL_BY_DTYPE[dtype]
    )


def test_a_bfloat16_table_is_used_in_float32() -> None:
    """Only the table's own rounding may show, not that of the products."""
    keys, table = random_keys(8), make_table(HEAD_DIM).bfloat16()
    at, to = torch.arange(8), torch.arange(8) + 100
    moved = shift_keys(keys, at, to, table, rotary_dim=HEAD_DIM, is_neox=True)
    same = shift_keys(keys, at, to, table.float(), rotary_dim=HEAD_DIM, is_neox=True)
    assert torch.equal(moved, same)


def test_no_keys_are_no_problem() -> None:
    none = torch.empty(0, dtype=torch.int64)
    moved = shift_keys(
        random_keys(0), none, none, make_table(HEAD_DIM), rotary_dim=HEAD_DIM, is_neox=True
    )
    assert moved.shape == (0, NUM_HEADS, HEAD_DIM)


def huggingface_rope(rope_type: str) -> tuple[Any, Any]:
    """HuggingFace's rotary embedding, and its cosines and sines as one table."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=MAX_POSITION,
        rope_parameters={"rope_theta": 10000.0, **ROPE_TYPES[rope_type]},
    )
    embedding = LlamaRotaryEmbedding(config)
    cos, sin = embedding(torch.zeros(1), torch.arange(MAX_POSITION)[None])
    half = HEAD_DIM // 2
    return embedding, torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1)


def huggingface_rotate(embedding: Any, keys: Any, at: Any) -> Any:
    """(num_tokens, num_heads, head_dim) rotated by HuggingFace's own function."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    cos, sin = embedding(keys, at[None])
    heads_first = keys.transpose(0, 1)[None]
    _, rotated = apply_rotary_pos_emb(heads_first, heads_first, cos, sin)
    return rotated[0].transpose(0, 1)
