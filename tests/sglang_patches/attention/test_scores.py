# SPDX-License-Identifier: Apache-2.0
"""What a question gives each key equals dense softmax sums, wherever the keys were computed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from depcache.prompt.forest import Forest
from depcache.select import ByScore
from sglang_patches.attention import scores as scores_module
from sglang_patches.attention.scores import ScoreKeeper, sum_weights
from sglang_patches.forward import DependencyBatch
from sglang_patches.requests.scoring import Scores

pytestmark = pytest.mark.sglang

SCALE = 0.3
HEAD_DIM, NUM_SLOTS, LAST_LAYER = 16, 64, 3


def dense(
    query: torch.Tensor,
    keys: torch.Tensor,
    logit_cap: float = 0.0,
    num_seen: list[int] | None = None,
) -> np.ndarray:
    """The same in float64, one head after the other."""
    group = query.shape[1] // keys.shape[1]
    total = np.zeros(len(keys))
    for head in range(query.shape[1]):
        products = query[:, head].double().numpy() @ keys[:, head // group].double().numpy().T
        products = products * SCALE
        if logit_cap:
            products = logit_cap * np.tanh(products / logit_cap)
        for row, num in enumerate(num_seen or []):
            products[row, num:] = -np.inf
        weights = np.exp(products - products.max(1, keepdims=True))
        total += (weights / weights.sum(1, keepdims=True)).sum(0)
    return total


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("logit_cap", [0.0, 2.0])
@pytest.mark.parametrize("max_weights", [2**24, 7])
def test_sums_are_those_of_dense_softmax(
    num_kv_heads: int, logit_cap: float, max_weights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores_module, "MAX_WEIGHTS", max_weights)
    torch.manual_seed(num_kv_heads)
    query, keys = torch.randn(9, 4, HEAD_DIM), torch.randn(40, num_kv_heads, HEAD_DIM)
    found = sum_weights(query, keys, SCALE, logit_cap)
    assert found.dtype == torch.float64
    assert np.abs(found.numpy() - dense(query, keys, logit_cap)).max() < 1e-5
    assert float(found.sum()) == pytest.approx(9 * 4)
    num_seen = [1, 40, *range(30, 37)]
    found = sum_weights(query, keys, SCALE, logit_cap, torch.tensor(num_seen))
    assert np.abs(found.numpy() - dense(query, keys, logit_cap, num_seen)).max() < 1e-5


def cos_sin_cache(num_positions: int = 128) -> torch.Tensor:
    inv_freq = 10_000.0 ** -(torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    angles = torch.arange(num_positions)[:, None] * inv_freq
    return torch.cat((angles.cos(), angles.sin()), -1)


def turned(keys: torch.Tensor, positions: np.ndarray) -> torch.Tensor:
    """Keys as a model turns them for their positions (NeoX), from the definition."""
    table = cos_sin_cache()[torch.from_numpy(positions)].unsqueeze(1)
    cos, sin = table.chunk(2, -1)
    low, high = keys.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


class World:
    """A pool of two layers and two requests of rows in it: what a backend has of a server."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.raw = torch.randn(NUM_SLOTS, 2, HEAD_DIM)
        self.pool = torch.zeros(NUM_SLOTS, 2, HEAD_DIM)
        self.rows = torch.stack([torch.randperm(NUM_SLOTS)[:20].int() for _ in range(2)])
        rope = torch.nn.Identity()
        rope.cos_sin_cache, rope.rotary_dim, rope.is_neox_style = cos_sin_cache(), HEAD_DIM, True  # pyright: ignore
        self.keeper = ScoreKeeper(
            SimpleNamespace(
                model=torch.nn.Sequential(rope),
                tp_group=SimpleNamespace(world_size=1),
                req_to_token_pool=SimpleNamespace(req_to_token=self.rows),
                token_to_kv_pool=SimpleNamespace(
                    start_layer=2, layer_num=2, get_key_buffer=lambda layer: self.pool
                ),
            )
        )

    def run(self, scored: list[Any], query: torch.Tensor, layer_id: int = LAST_LAYER) -> None:
        batch = SimpleNamespace(req_pool_indices=torch.tensor([1, 0]))
        dependencies = DependencyBatch([], [], None, scored) if scored else None
        self.keeper.start(dependencies, batch)
        layer: Any = SimpleNamespace(
            layer_id=layer_id, tp_q_head_num=4, scaling=SCALE, logit_cap=0.0
        )
        self.keeper.run(layer, query.reshape(len(query), -1))


# system 0-1 | row 2-4 | row 5-8 | question 9-13 | 14; both rows were computed at 2
FOREST = Forest.make(15, 2, [3, 4], [-1, -1])
HOMES = np.array([0, 1, 2, 3, 4, 2, 3, 4, 5, *range(9, 15)])
# Row 5-8 was cached, so it comes first.
ORDER = np.array([0, 1, 5, 6, 7, 8, 2, 3, 4, *range(9, 15)])


def make_scores(has_focus: bool = False) -> Scores:
    return Scores(ByScore(np.array([5]), (2,), has_focus), FOREST, HOMES, range(2, 9))


def test_keys_are_turned_to_where_they_stand_and_chunks_add_up() -> None:
    world, scores = World(), make_scores()
    slots = world.rows[0].long()  # of the second of the batch
    for row, index in enumerate(ORDER[:9]):
        if index >= 2:
            home = HOMES[index : index + 1]
            world.pool[slots[row]] = turned(world.raw[slots[row]][None], home)[0]
    query = torch.randn(8, 4, HEAD_DIM)
    for num_prefix, num_new, start in ((0, 7, 0), (7, 4, 2), (11, 4, 0)):
        rows = scores.rows(ORDER, num_prefix, num_new, 1, start)
        world.run([rows] if rows else [], query)
    context = slots[[ORDER.tolist().index(index) for index in range(2, 9)]]
    keys = turned(world.raw[context], np.arange(2, 9))
    # Question rows 9, 10 behind two of another request's and the row before; then 11, 12, 13.
    questions = torch.cat((query[4:6], query[0:3]))
    assert list(scores.sums) == [LAST_LAYER] and scores.num_rows == 5
    expected = dense(questions, keys)
    assert np.abs(scores.sums[LAST_LAYER].numpy() - expected).max() < 1e-5
    as_cached = dense(questions, world.pool[context])
    assert np.abs(as_cached - expected).max() > 1e-2  # a control: turning matters
    assert scores.chosen() == sorted([5, *(6 + np.argsort(-expected[4:])[:2])])


def test_only_the_last_layer_and_only_its_own_pass_count() -> None:
    world, scores = World(), make_scores()
    query = torch.randn(15, 4, HEAD_DIM)
    world.run([scores.rows(ORDER, 0, 15, 0, 0)], query, layer_id=LAST_LAYER - 1)
    assert not scores.sums
    world.run([], query)
    assert not scores.sums and scores.chosen() is None


def test_with_a_focus_every_layer_counts() -> None:
    world, scores = World(), make_scores(has_focus=True)
    rows = scores.rows(ORDER, 0, 15, 0, 0)
    for layer in (LAST_LAYER - 1, LAST_LAYER):
        assert scores.chosen() is None
        world.run([rows], torch.randn(15, 4, HEAD_DIM), layer_id=layer)
    assert list(scores.sums) == [LAST_LAYER - 1, LAST_LAYER] and scores.num_rows == 5
    sums = np.stack([each.numpy() for each in scores.sums.values()])
    assert scores.chosen() == scores.by_score.choose(FOREST, sums).tolist()


@pytest.mark.parametrize("chunk", [1, 4, 15])
def test_behind_its_context_the_question_sees_everything_before_it(chunk: int) -> None:
    world = World()
    by_score = ByScore(np.array([5]), (2,), scorer="query-context")
    scores = Scores(by_score, FOREST, np.arange(15), range(14))
    world.pool[:] = world.raw
    query = torch.randn(15, 4, HEAD_DIM)
    for start in range(0, 15, chunk):
        num_new = min(chunk, 15 - start)
        rows = scores.rows(ORDER, start, num_new, 1, 0)
        world.run([rows] if rows else [], query[start : start + num_new])
    slots = world.rows[0].long()
    keys = world.raw[slots[[ORDER.tolist().index(index) for index in range(14)]]]
    expected = dense(query[9:14], keys, num_seen=list(range(10, 15)))
    assert np.abs(scores.sums[LAST_LAYER].numpy() - expected[2:9]).max() < 1e-5
    assert scores.chosen() == sorted([5, *(6 + np.argsort(-expected[6:9])[:2])])
