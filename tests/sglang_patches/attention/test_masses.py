# SPDX-License-Identifier: Apache-2.0
"""What rows give each other equals dense softmax sums, however the prompt is cut into passes."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sglang_patches.attention import masses as masses_module
from sglang_patches.attention.masses import MassKeeper, sum_masses
from sglang_patches.forward import DependencyBatch
from sglang_patches.requests.masses import RowMasses

pytestmark = pytest.mark.sglang

SCALE, HEAD_DIM, NUM_TOKENS = 0.3, 16, 17
# system 0-2 | row 3-6 | row 7-8 | row 9-13 | task 14-16
STARTS, STOP = (3, 7, 9), 14


def dense(query: torch.Tensor, keys: torch.Tensor, logit_cap: float = 0.0) -> np.ndarray:
    """(num_tokens, num_tokens) causal weights in float64, summed over heads."""
    group = query.shape[1] // keys.shape[1]
    total = np.zeros((len(query), len(keys)))
    for head in range(query.shape[1]):
        products = query[:, head].double().numpy() @ keys[:, head // group].double().numpy().T
        products = products * SCALE
        if logit_cap:
            products = logit_cap * np.tanh(products / logit_cap)
        products[~np.tri(*products.shape, dtype=bool)] = -np.inf
        weights = np.exp(products - products.max(1, keepdims=True))
        total += weights / weights.sum(1, keepdims=True)
    return total


def by_rows(weights: np.ndarray) -> np.ndarray:
    """(STOP, num_rows)"""
    return np.add.reduceat(weights[:STOP, :STOP], STARTS, axis=1)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("logit_cap", [0.0, 2.0])
@pytest.mark.parametrize("max_weights", [2**24, 7])
def test_sums_are_those_of_dense_softmax(
    num_kv_heads: int, logit_cap: float, max_weights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masses_module, "CACHED_WEIGHTS", max_weights)
    monkeypatch.setattr(masses_module, "MIN_QUERIES", 3)
    torch.manual_seed(num_kv_heads)
    query = torch.randn(STOP, 4, HEAD_DIM)
    keys = torch.randn(STOP, num_kv_heads, HEAD_DIM)
    row_of = torch.tensor([0] * 3 + [1] * 4 + [2] * 2 + [3] * 5)
    weights = dense(query, keys, logit_cap)
    for first in (0, 5):
        found = sum_masses(query[first:], keys, first, row_of, 3, SCALE, logit_cap).numpy()
        assert np.abs(found[:, :3] - by_rows(weights)[first:]).max() < 1e-5
        assert np.abs(found[:, 3] - np.diag(weights)[first:]).max() < 1e-5


class World:
    """A pool of two layers and two requests of rows in it: what a backend has of a server."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.pools = {layer: torch.randn(64, 2, HEAD_DIM) for layer in (2, 3)}
        self.rows = torch.stack([torch.randperm(64)[:20].int() for _ in range(2)])
        self.keeper = MassKeeper(
            SimpleNamespace(
                tp_group=SimpleNamespace(world_size=1),
                req_to_token_pool=SimpleNamespace(req_to_token=self.rows),
                token_to_kv_pool=SimpleNamespace(get_key_buffer=self.pools.__getitem__),
            )
        )

    def run(self, weighed: list[Any], queries: dict[int, torch.Tensor]) -> None:
        batch = SimpleNamespace(req_pool_indices=torch.tensor([1, 0]))
        dependencies = DependencyBatch([], [], None, [], weighed) if weighed else None
        self.keeper.start(dependencies, batch)
        for number, query in queries.items():
            layer: Any = SimpleNamespace(
                layer_id=number, tp_q_head_num=4, scaling=SCALE, logit_cap=0.0
            )
            self.keeper.run(layer, query.reshape(len(query), -1))


@pytest.mark.parametrize("cuts", [[0, 17], [0, 5, 9, 17], [0, 8, 15, 17]])
def test_passes_and_layers_add_up(cuts: list[int]) -> None:
    world, masses = World(), RowMasses(STARTS, STOP)
    queries = {layer: torch.randn(NUM_TOKENS, 4, HEAD_DIM) for layer in (2, 3)}
    for start, stop in itertools.pairwise(cuts):
        # Behind two rows of another request in the same batch.
        rows = masses.rows(np.arange(NUM_TOKENS), start, stop - start, 1, 2)
        padded = {
            layer: torch.cat((torch.randn(2, 4, HEAD_DIM), query[start:stop]))
            for layer, query in queries.items()
        }
        world.run([rows] if rows else [], padded)
    slots = world.rows[0, :NUM_TOKENS].long()
    mean = np.mean(
        [dense(query, world.pools[layer][slots]) for layer, query in queries.items()], axis=0
    )
    mean /= 4
    expected = by_rows(mean)
    for row, (start, stop) in enumerate(((3, 7), (7, 9), (9, 14))):
        told = masses.told()[row]
        assert told is not None
        own = expected[start:stop]
        assert told["inter"] == pytest.approx(own[:, :row].sum(0).tolist(), abs=1e-5)
        inside = np.tril(mean[start:stop, start:stop], -1).sum()
        assert told["intra"] == pytest.approx(inside, abs=1e-5)
        assert told["order"] == np.argsort(-own[:, :row].sum(1), kind="stable").tolist()


def test_nothing_is_told_of_a_row_that_was_cached() -> None:
    world, masses = World(), RowMasses(STARTS, STOP)
    assert masses.told() == [None] * 3
    rows = masses.rows(np.arange(NUM_TOKENS), 8, 9, 0, 0)
    world.run([rows], {2: torch.randn(9, 4, HEAD_DIM)})
    told = masses.told()
    assert told[:2] == [None, None] and told[2] is not None
    assert masses.rows(np.arange(NUM_TOKENS), 14, 3, 0, 0) is None
    again = masses.restart()
    assert again.told() == [None] * 3 and masses.told()[2] is not None
    world.run([], {2: torch.randn(9, 4, HEAD_DIM)})
    assert again.to_rows is None
