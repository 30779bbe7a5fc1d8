# SPDX-License-Identifier: Apache-2.0
"""A model body that cannot be run by itself costs its request the scores, and nobody else."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from depcache.prompt.forest import Forest
from depcache.select import ByScore
from sglang_patches.attention.deviation import DeviationKeeper
from sglang_patches.forward import DependencyBatch
from sglang_patches.requests.deviations import DeviatingRows, Deviations

pytestmark = pytest.mark.sglang

NUM_HEADS, HEAD_DIM = 2, 4
# system 0 | row 1-2 | row 3-4 | one token
FOREST = Forest.make(6, 1, [2, 2], [-1, -1])
TOKENS = np.array([7, 8, 9, 8, 9])


class Body:
    """Two layers whose keys are the running sums of what they read."""

    def __init__(self, keeper: list[DeviationKeeper], logit_cap: float = 0.0, num: int = 2) -> None:
        self.keeper, self.seen = keeper, []
        self.layers = [
            SimpleNamespace(
                layer_id=number, tp_q_head_num=NUM_HEADS, scaling=0.5, logit_cap=logit_cap
            )
            for number in range(num)
        ]

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor, batch: Any) -> torch.Tensor:
        assert batch.input_ids is ids and batch.num_token_non_padded is None
        hidden = (ids + positions).float()[:, None].expand(-1, NUM_HEADS * HEAD_DIM)
        for layer in self.layers:
            [keeper] = self.keeper
            assert keeper.is_beside
            keys = hidden.reshape(len(ids), NUM_HEADS, HEAD_DIM)
            hidden = hidden + keeper.attend(hidden, keys, keys, layer)
        return hidden


def make_keeper(body: Any, pool: torch.Tensor) -> DeviationKeeper:
    return DeviationKeeper(
        SimpleNamespace(
            model=SimpleNamespace(model=body),
            tp_group=SimpleNamespace(world_size=1),
            req_to_token_pool=SimpleNamespace(req_to_token=torch.arange(20).reshape(2, 10)),
            token_to_kv_pool=SimpleNamespace(
                start_layer=0, layer_num=2, get_key_buffer=lambda layer: pool
            ),
        )
    )


def start(keeper: DeviationKeeper) -> Deviations:
    deviations = Deviations(ByScore(np.array([], np.int64), (1,)), FOREST, TOKENS)
    batch = SimpleNamespace(
        input_ids=torch.tensor([5]),
        positions=torch.tensor([5]),
        req_pool_indices=torch.tensor([0, 1]),
        num_token_non_padded=1,
    )
    rows = DeviatingRows(deviations, 1, np.array([1, 2, 3, 4]))
    keeper.start(DependencyBatch([], [], deviating=[rows]), batch)
    assert batch.num_token_non_padded == 1 and not keeper.is_beside
    return deviations


def test_it_is_the_distance_of_the_second_layers_keys() -> None:
    keepers: list[DeviationKeeper] = []
    body = Body(keepers)
    pool = torch.zeros(20, NUM_HEADS, HEAD_DIM)
    keepers.append(make_keeper(body, pool))
    deviations = start(keepers[0])
    keepers[0].run(body.layers[0])
    assert deviations.sums is None
    keepers[0].run(body.layers[1])
    assert deviations.sums is not None
    # The first layer: each token's sum of token and position, and a mean of those before it.
    values = (TOKENS + np.arange(5)).astype(np.float64)
    keys = []
    for number, value in enumerate(values):
        weights = np.exp(0.5 * HEAD_DIM * value * values[: number + 1])
        keys.append(value + weights @ values[: number + 1] / weights.sum())
    expected = NUM_HEADS * HEAD_DIM * np.square(keys[1:])
    assert np.abs(deviations.sums.numpy() - expected).max() < 1e-3
    keepers[0].start(None, None)
    before = deviations.sums
    keepers[0].run(body.layers[1])
    assert deviations.sums is before


@pytest.mark.parametrize(
    ("changed", "why"), [({"logit_cap": 30.0}, "soft cap"), ({"num": 1}, "no second layer")]
)
def test_what_cannot_be_computed_is_logged_and_leaves_no_scores(
    changed: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    keepers: list[DeviationKeeper] = []
    keepers.append(make_keeper(Body(keepers, **changed), torch.zeros(20, NUM_HEADS, HEAD_DIM)))
    with caplog.at_level(logging.ERROR, logger="depcache"):
        deviations = start(keepers[0])
    assert why in caplog.text
    keepers[0].run(SimpleNamespace(layer_id=1))
    assert deviations.chosen() is None
