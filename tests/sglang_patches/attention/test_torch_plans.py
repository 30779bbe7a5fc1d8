# SPDX-License-Identifier: Apache-2.0
"""Every attention plan, run with torch, equals dense attention under the mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flashinfer_masks.dense import dense_mask
from flashinfer_masks.visibility import Step, Structure

pytestmark = pytest.mark.sglang

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 16
SCALE = 0.3
PLANS = ("auto", "custom_mask", "segments", "cascade")


def make_step(
    rng: np.random.Generator,
    *,
    num_segments: int,
    system_len: int,
    max_len: int = 6,
    task_len: int = 5,
    share_cached: float = 0.0,
    num_new: int | None = None,
    one_tree: bool = False,
) -> Step:
    """A random forest, of whose segments some, with all above them, are cached."""
    parents = [-1]
    way = [0]
    for i in range(1, num_segments):
        level = int(rng.integers(1 if one_tree else 0, len(way) + 1))
        parents.append(way[level - 1] if level else -1)
        way = [*way[:level], i]
    lens = rng.integers(1, max_len + 1, num_segments)
    num_tokens = system_len + int(lens.sum()) + task_len
    structure = Structure.make(num_tokens, system_len, lens, np.array(parents))
    is_cached = np.zeros(num_tokens, bool)
    if share_cached:
        is_cached[:system_len] = True
        for i, parent in enumerate(parents):
            start = int(structure.starts[i])
            above = parent < 0 or is_cached[structure.starts[parent] + lens[parent] - 1]
            if above and rng.random() < share_cached:
                is_cached[start : start + int(lens[i])] = True
    indices = np.arange(num_tokens)
    order = np.concatenate((rng.permutation(indices[is_cached]), indices[~is_cached]))
    num_prefix = int(is_cached.sum())
    return Step(structure, order, num_prefix, num_new or num_tokens - num_prefix)


def run(plan: str, step: Step, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """The plan's output, and float64 dense attention under the oracle's mask."""
    from sglang_patches.attention.torch_plans import WORK_BY_PLAN

    generator = torch.Generator().manual_seed(0)
    num_slots = 3 * step.num_rows
    keys, values = (
        torch.randn(num_slots, NUM_KV_HEADS, HEAD_DIM, generator=generator).to(dtype)
        for _ in range(2)
    )
    slots = torch.randperm(num_slots, generator=generator)[: step.num_rows]
    query = torch.randn(step.num_new, NUM_HEADS, HEAD_DIM, generator=generator).to(dtype)
    output = torch.full_like(query, torch.nan)
    WORK_BY_PLAN[plan](step, slots).run(query, keys, values, output, SCALE)

    group = NUM_HEADS // NUM_KV_HEADS
    k = keys[slots].double().repeat_interleave(group, 1)
    v = values[slots].double().repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", query.double(), k) * SCALE
    scores = scores.masked_fill(~torch.from_numpy(dense_mask(step)), -torch.inf)
    return output, torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


CASES = {
    "cold": {"num_segments": 60, "system_len": 12},
    "partly cached": {"num_segments": 80, "system_len": 12, "share_cached": 0.6},
    "all cached": {"num_segments": 40, "system_len": 7, "share_cached": 1.0},
    "no system": {"num_segments": 50, "system_len": 0},
    "no system, cached": {"num_segments": 50, "system_len": 0, "share_cached": 0.7},
    "long system": {"num_segments": 20, "system_len": 150},
    "long segments": {"num_segments": 12, "system_len": 9, "max_len": 200},
    "one tree": {"num_segments": 90, "system_len": 5, "one_tree": True},
    "one segment": {"num_segments": 1, "system_len": 3},
    "tokens alone": {"num_segments": 100, "system_len": 2, "max_len": 1},
    "long task": {"num_segments": 30, "system_len": 4, "task_len": 120, "share_cached": 0.5},
    "a chunk": {"num_segments": 60, "system_len": 12, "num_new": 37},
    "a chunk of the system": {"num_segments": 9, "system_len": 40, "num_new": 11},
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("case", CASES)
def test_a_plan_equals_dense_attention(plan: str, case: str) -> None:
    for seed in range(4):
        step = make_step(np.random.default_rng(seed), **CASES[case])
        output, expected = run(plan, step)
        torch.testing.assert_close(output.double(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_in_bfloat16_is_as_close_as_its_rounding(plan: str) -> None:
    step = make_step(np.random.default_rng(0), **CASES["partly cached"])
    output, expected = run(plan, step, torch.bfloat16)
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=5e-2)


@pytest.mark.parametrize(("num_prefix", "num_new"), [(0, 9), (0, 300), (40, 1), (40, 9), (90, 200)])
def test_a_plain_request_over_new_rows_equals_causal_attention(num_prefix, num_new) -> None:
    from sglang_patches.attention.torch_plans import CausalWork

    num_rows = num_prefix + num_new
    generator = torch.Generator().manual_seed(0)
    keys, values = torch.randn(2, num_rows, NUM_KV_HEADS, HEAD_DIM, generator=generator)
    query = torch.randn(num_new, NUM_HEADS, HEAD_DIM, generator=generator)
    output = torch.empty_like(query)
    CausalWork(torch.arange(num_rows)).run(query, keys, values, output, SCALE)
    mask = torch.ones(num_new, num_rows, dtype=torch.bool).tril(num_prefix)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.double().transpose(0, 1),
        keys.double().repeat_interleave(2, 1).transpose(0, 1),
        values.double().repeat_interleave(2, 1).transpose(0, 1),
        attn_mask=mask,
        scale=SCALE,
    )
    torch.testing.assert_close(output.double(), expected.transpose(0, 1), rtol=0, atol=2e-5)


@pytest.mark.parametrize("num_new", [1, 2, 3, 33, 34, 64, 191, 520, 1100])
@pytest.mark.parametrize("num_keys", [1101, 1152, 1154])
def test_new_rows_alone_equal_the_same_rows_of_the_whole_square(num_new, num_keys) -> None:
    """SGLang's own attention computes the square; promise P5 allows 1e-5 after all layers.

    A merge of two partial attentions by log-sum-exp is wrong by 3e-6 here, in each layer.
    """
    from sglang_patches.attention.torch_plans import attend, attend_causal

    generator = torch.Generator().manual_seed(0)
    # As the engine has them: token first in memory, heads first in the view.
    query = 3 * torch.randn(1, num_keys, NUM_HEADS, HEAD_DIM, generator=generator).transpose(1, 2)
    keys, values = torch.randn(2, 1, num_keys, NUM_KV_HEADS, HEAD_DIM, generator=generator)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    square = attend(query, keys, values, SCALE, is_causal=True)
    rows = attend_causal(query[..., -num_new:, :], keys, values, SCALE)
    torch.testing.assert_close(rows[0], square[0][..., -num_new:, :], rtol=0, atol=5e-7)
    torch.testing.assert_close(rows[1], square[1][..., -num_new:], rtol=0, atol=5e-6)


def test_the_generic_attention_of_a_gpu_equals_that_of_a_cpu() -> None:
    """The same function takes another way on a GPU; here that way runs on a CPU."""
    from sglang_patches.attention import torch_plans

    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, NUM_HEADS, 7, HEAD_DIM, generator=generator)
    keys, values = torch.randn(2, 1, NUM_KV_HEADS, 7, HEAD_DIM, generator=generator)
    mask = torch.zeros(7, 7).masked_fill(torch.ones(7, 7).triu(2).bool(), -torch.inf)
    for keywords in ({}, {"is_causal": True}, {"mask": mask}):
        fused = torch_plans.attend(query, keys, values, SCALE, **keywords)
        generic = torch_plans.attend_generic(query, keys, values, SCALE, **keywords)
        for left, right in zip(fused, generic, strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=2e-6)


def test_auto_takes_the_plan_with_less_to_do() -> None:
    from sglang_patches.attention.torch_plans import CascadeWork, SegmentsWork, make_fastest_work

    rng = np.random.default_rng(0)
    bushy = make_step(rng, num_segments=900, system_len=2, max_len=2, one_tree=True)
    assert isinstance(make_fastest_work(bushy, torch.arange(bushy.num_rows)), SegmentsWork)
    long_system = make_step(rng, num_segments=200, system_len=500)
    work = make_fastest_work(long_system, torch.arange(long_system.num_rows))
    assert isinstance(work, CascadeWork)


def test_where_all_context_is_cached_auto_is_one_causal_request_bit_for_bit() -> None:
    from sglang_patches.attention.torch_plans import CausalWork, make_fastest_work

    step = make_step(
        np.random.default_rng(1), num_segments=90, system_len=12, share_cached=1.0, task_len=9
    )
    assert isinstance(make_fastest_work(step, torch.arange(step.num_rows)), CausalWork)
    fastest, expected = run("auto", step)
    torch.testing.assert_close(fastest.double(), expected, rtol=0, atol=1e-5)
    assert torch.equal(fastest, run("cascade", step)[0])
    assert torch.equal(fastest, run("segments", step)[0])
