# SPDX-License-Identifier: Apache-2.0
"""A settling request with its question set apart: who sees whom, where, and what is chosen."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from depcache.cache import KVTree
from depcache.plan import plan_request
from depcache.prompt.forest import Forest
from depcache.prompt.wire import WireIds
from depcache.select import ByScore
from flashinfer_masks.dense import dense_mask
from flashinfer_masks.visibility import Step
from sglang_patches.requests.scoring import SCORING, Scores, take_param, to_param
from sglang_patches.requests.state import FirstSlice, RequestState
from sglang_patches.requests.tenants import Namespace
from tests.helpers.insertion import cache_context

pytestmark = pytest.mark.sglang

BUDGET = ByScore(np.array([5]), (2,))
# system 0-1 | row 2-4 | row 5-8 | the question 9-12 | its first token again
WIRE = WireIds(
    depcache_version=2,
    depcache_system_len=2,
    depcache_segment_lens=[3, 4],
    depcache_segment_parents=[-1, -1],
)
TOKENS = np.array([1, 2, 10, 11, 12, 20, 21, 22, 23, 30, 31, 32, 33, 30])
NAMESPACE = Namespace(None, "tree")


def make_state(tree: KVTree, by_score: ByScore | None = BUDGET) -> RequestState:
    state = RequestState.make(
        TOKENS, WIRE, NAMESPACE, None if by_score is None else {SCORING: to_param(by_score)}
    )
    plan = plan_request(tree, tree.root(NAMESPACE), state.table, tail_stop=len(TOKENS) - 1)
    state.start(tree, plan)
    return state


def test_the_question_sees_the_system_and_itself_and_stands_in_its_place() -> None:
    state = make_state(KVTree())
    assert state.plan is not None
    mask = dense_mask(Step(state.structure, state.plan.order, 0, 14))
    expected = np.zeros((14, 14), bool)
    for start, stop in ((2, 5), (5, 9), (9, 14)):
        expected[start:stop, :2] = True
        expected[start:stop, start:stop] = np.tri(stop - start, dtype=bool)
    expected[:2, :2] = np.tri(2, dtype=bool)
    assert (mask == expected).all()
    assert state.row_positions(0, 14).tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 5, *range(9, 14)]


def test_rows_are_matched_as_ever_and_the_question_never_is() -> None:
    tree = KVTree()
    cache_context(tree, NAMESPACE, make_state(tree, None).table)
    plan = make_state(tree).plan
    assert plan is not None
    assert (plan.num_shared, plan.num_missed, plan.num_tail) == (9, 0, 0)
    state = make_state(tree)
    assert state.tail is not None and not state.tail.is_open(5)
    assert state.report()["plain"] == 5
    # Rows that begin like the question are no matter either: it is no segment to the cache.
    assert state.table.num_segments == 3


def test_scores_begin_anew_when_the_request_does() -> None:
    tree = KVTree()
    state = make_state(tree)
    old = state.scores
    assert isinstance(old, Scores) and state.plan is not None
    old.add(3, torch.ones(7, dtype=torch.float64), 4)
    state.start(tree, state.plan)
    assert isinstance(state.scores, Scores) and state.scores.num_rows == 0
    old.add(3, torch.ones(7, dtype=torch.float64), 1)  # a pass that was still running
    assert not state.scores.sums and state.scores.chosen() is None


def make_scores() -> Scores:
    forest = Forest.make(14, 2, [3, 4], [-1, -1])
    return Scores(BUDGET, forest, np.zeros(14, np.int64), range(2, 9))


@pytest.mark.parametrize("chunk", [1, 3, 8, 14])
def test_the_rows_of_all_chunks_are_those_of_the_question(chunk: int) -> None:
    order, found = np.arange(14), []
    for start in range(0, 14, chunk):
        rows = make_scores().rows(order, start, min(chunk, 14 - start), 0, 100)
        if rows is not None:
            assert rows.key_rows.tolist() == list(range(2, 9))
            found += range(rows.queries.start - 100 + start, rows.queries.stop - 100 + start)
    assert found == [9, 10, 11, 12]


def test_the_highest_are_chosen_once_every_row_has_come() -> None:
    scores = make_scores()
    scores.add(3, torch.tensor([9.0, 9, 9, 5, 1, 0, 2], dtype=torch.float64), 3)
    assert scores.chosen() is None
    scores.add(3, torch.tensor([0.0, 0, 0, 0, 0, 4, 0], dtype=torch.float64), 1)
    assert scores.chosen() == [5, 7, 8]


def test_the_report_has_what_was_chosen() -> None:
    state = make_state(KVTree())
    req: Any = SimpleNamespace(customized_info={"depcache": FirstSlice([state.report()])})
    assert isinstance(state.scores, Scores)
    state.scores.add(3, torch.tensor([9.0, 9, 9, 5, 1, 0, 2], dtype=torch.float64), 4)
    state.tell(req)
    assert req.customized_info["depcache"][0]["chosen"] == [5, 6, 8]
    plain = make_state(KVTree(), None)
    req = SimpleNamespace(customized_info={"depcache": FirstSlice([plain.report()])})
    plain.tell(req)
    assert "chosen" not in req.customized_info["depcache"][0]


def test_a_budget_is_told_in_plain_numbers() -> None:
    budget = take_param(json.loads(json.dumps(to_param(BUDGET))))
    assert budget is not None and (budget.nums, budget.taken.tolist()) == ((2,), [5])
    assert not budget.has_focus and budget.scorer == "query"
    told = take_param(json.loads(json.dumps(to_param(replace(BUDGET, scorer="deviation")))))
    assert told is not None and told.scorer == "deviation"
    focused = replace(BUDGET, has_focus=True)
    assert (told := take_param(json.loads(json.dumps(to_param(focused))))) and told.has_focus
    assert take_param(None) is None
