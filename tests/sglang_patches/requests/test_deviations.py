# SPDX-License-Identifier: Apache-2.0
"""The deviation of a context: in which pass it is taken, and what is chosen by it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from depcache.errors import PromptError
from depcache.prompt.forest import Forest
from depcache.prompt.recompute import Recompute
from depcache.select import ByScore
from sglang_patches.requests.deviations import Deviations
from sglang_patches.requests.fused import refuse_deviation

pytestmark = pytest.mark.sglang

# system 0-1 | row 2-4 | row 5-8 | one token
FOREST = Forest.make(10, 2, [3, 4], [-1, -1])
# Row 5-8 was cached, so it comes first.
ORDER = np.array([0, 1, 5, 6, 7, 8, 2, 3, 4, 9])


def make_deviations() -> Deviations:
    budget = ByScore(np.array([5]), (2,), scorer="deviation")
    return Deviations(budget, FOREST, np.arange(9))


@pytest.mark.parametrize("chunk", [1, 4, 10])
def test_it_is_taken_once_when_every_row_is_there(chunk: int) -> None:
    deviations = make_deviations()
    passes = [
        deviations.rows(ORDER, start, min(chunk, 10 - start), 3, 0) for start in range(0, 10, chunk)
    ]
    *before, last = passes
    assert not any(before) and last is not None and last.request == 3
    assert ORDER[last.key_rows].tolist() == list(range(2, 9))


def test_the_farthest_are_chosen_and_a_new_beginning_forgets_them() -> None:
    deviations = make_deviations()
    assert deviations.chosen() is None
    deviations.sums = torch.tensor([9.0, 9, 9, 0, 1, 0.5, 2], dtype=torch.float64)
    assert deviations.chosen() == [5, 6, 8]
    assert deviations.restart().chosen() is None


@pytest.mark.parametrize(
    ("adapters", "num_layers", "why"), [(True, 8, "LoRA adapters"), (False, 1, "this model has 1")]
)
def test_it_is_refused_where_two_layers_cannot_be_run_by_themselves(
    adapters: bool, num_layers: int, why: str
) -> None:
    manager = SimpleNamespace(
        server_args=SimpleNamespace(enable_lora=adapters),
        model_config=SimpleNamespace(num_hidden_layers=num_layers),
    )
    with pytest.raises(PromptError, match=why):
        refuse_deviation(Recompute(select="deviation"), manager)
    for recompute in (None, Recompute(select="query-context")):
        refuse_deviation(recompute, manager)
    manager.server_args.enable_lora, manager.model_config.num_hidden_layers = False, 2
    refuse_deviation(Recompute(select="deviation"), manager)
