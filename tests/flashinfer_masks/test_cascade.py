# SPDX-License-Identifier: Apache-2.0
"""The plan `cascade`: its batches by exact ids, its masks, and its limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_masks import (
    Batch,
    PlanTooLargeError,
    Step,
    cascade_runs,
    pack_runs,
    plan_cascade,
    ragged,
)
from tests.flashinfer_masks.make import (
    all_steps,
    joined_structures,
    make_step,
    make_structure,
    pack_masks,
    steps,
)


def requests(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """Each request as (new rows, KV rows)."""
    return [
        (
            batch.q_rows[batch.q_indptr[request] : batch.q_indptr[request + 1]].tolist(),
            batch.kv_rows[batch.kv_indptr[request] : batch.kv_indptr[request + 1]].tolist(),
        )
        for request in range(batch.num_requests)
    ]


@settings(max_examples=300, deadline=None)
@given(step=st.one_of(steps(), steps(joined_structures())))
def test_every_new_row_is_a_query_once_and_of_the_system_once_more(step: Step) -> None:
    plan = plan_cascade(step)
    queries = np.concatenate((plan.causal.q_rows, plan.masked.q_rows))
    assert sorted(queries.tolist()) == list(range(step.num_new))
    if step.structure.system_len:
        assert plan.system.q_rows.tolist() == list(range(plan.context_start, plan.tail_start))
    else:
        assert plan.system.num_requests == 0
    for batch in (plan.system, plan.causal, plan.masked):
        arrays = (batch.q_rows, batch.q_indptr, batch.kv_indptr, batch.kv_rows)
        assert {array.dtype for array in arrays} == {np.dtype(np.int32)}
        assert batch.q_indptr[-1] == len(batch.q_rows)
        assert batch.kv_indptr[-1] == len(batch.kv_rows)
        for q_rows, _ in requests(batch):
            assert q_rows == list(range(q_rows[0], q_rows[0] + len(q_rows)))


@settings(max_examples=300, deadline=None)
@given(step=st.one_of(steps(), steps(joined_structures())))
def test_a_tree_with_a_mask_needs_it_and_has_no_useless_key(step: Step) -> None:
    plan = plan_cascade(step)
    for mask in plan.masks():
        num_queries, num_keys = mask.shape
        assert not np.array_equal(mask, np.tri(num_queries, num_keys, num_keys - num_queries, bool))
        assert mask.any(axis=0).all()
        assert mask.any(axis=1).all()


@settings(max_examples=300, deadline=None)
@given(step=all_steps())
def test_runs_are_packed_as_the_masks_are(step: Step) -> None:
    plan = plan_cascade(step)
    packed, expected = pack_runs(cascade_runs(step, plan)), pack_masks(plan.masks())
    np.testing.assert_array_equal(packed.bits, expected.bits)
    np.testing.assert_array_equal(packed.mask_indptr, expected.mask_indptr)


def test_batches_of_a_cold_prompt() -> None:
    # index 0 1 | 2 3 | 4 | 5 6 | 7 8 | 9
    #       sys | 0   | 1 | 2   | 3   | task    segments 1, 2 below 0; 3 is a tree of one chain
    structure = make_structure(2, [(-1, 2), (0, 1), (0, 2), (-1, 2)], task_len=1)
    plan = plan_cascade(make_step(structure, [], 0, 10))
    assert requests(plan.system) == [([2, 3, 4, 5, 6, 7, 8], [0, 1])]
    assert requests(plan.causal) == [([0, 1], [0, 1]), ([9], list(range(10))), ([7, 8], [7, 8])]
    assert requests(plan.masked) == [([2, 3, 4, 5, 6], [2, 3, 4, 5, 6])]
    assert plan.key_starts.tolist() == [0, 1, 2, 3, 4]
    assert plan.key_stops.tolist() == [5, 5, 3, 5, 5]
    assert (plan.context_start, plan.tail_start) == (2, 9)


def test_cached_branches_that_no_new_row_sees_are_left_out() -> None:
    # Below root 1: cached 2 3, missed 4, cached 5, missed 6.
    structure = make_structure(1, [(-1, 1), (0, 2), (0, 1), (0, 1), (0, 1)], task_len=1)
    step = make_step(structure, [5, 3, 2, 1, 0], 0, 2)
    plan = plan_cascade(step)
    assert requests(plan.masked) == [([0, 1], [3, 5, 6])]
    assert plan.masks()[0].tolist() == [[True, True, False], [True, False, True]]
    (runs,) = cascade_runs(step, plan)
    assert (runs.starts.tolist(), runs.stops.tolist()) == ([0, 1, 3, 5], [1, 2, 4, 6])


def test_a_tree_with_one_missed_chain_needs_no_mask() -> None:
    structure = make_structure(1, [(-1, 2), (0, 2), (0, 3)], task_len=1)
    plan = plan_cascade(make_step(structure, [4, 3, 2, 1, 0], 0, 3))
    assert plan.masked.num_requests == 0
    assert plan.masks() == []
    assert requests(plan.causal) == [([0, 1, 2], [3, 2, 5, 6, 7])]


def test_what_a_tree_is_joined_to_stands_before_its_own_keys() -> None:
    # index 0 | 1 | 2 | 3 | 4 5 | 6 | 7 | 8
    #       s | 0 | 1 | 2 | 3   | 4 | 5 | task    3 sees 1 (below 0) and 2; 4 and 5 are below it
    segments = [(-1, 1), (0, 1), (-1, 1), (-1, 2), (3, 1), (3, 1)]
    structure = make_structure(1, segments, task_len=1, joins={3: [1, 2]})
    step = make_step(structure, [3, 0, 1, 2], 0, 5)
    plan = plan_cascade(step)
    assert requests(plan.masked) == [([0, 1, 2, 3], [2, 3, 0, 4, 5, 6, 7])]
    assert plan.key_starts.tolist() == [0, 0, 0, 0, 1, 2, 3]
    assert plan.key_stops.tolist() == [4, 4, 4, 4, 4, 3, 4]


def test_more_mask_bits_than_int32_counts_are_refused() -> None:
    # 50,000 new rows in one tree with two chains: 2.5e9 bits. The intervals are still fine.
    structure = make_structure(0, [(-1, 49_998), (0, 1), (0, 1)], task_len=1)
    plan = plan_cascade(make_step(structure, [], 0, 50_000))
    assert len(plan.key_starts) == 50_000
    with pytest.raises(PlanTooLargeError, match="2500000000 mask bits"):
        plan.masks()


def test_more_kv_rows_than_int32_counts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    step = make_step(make_structure(0, [(-1, 9), (-1, 9)], task_len=1), [], 0, 19)
    monkeypatch.setattr(ragged, "MAX_INT32", 36)
    with pytest.raises(PlanTooLargeError, match="37 KV rows"):
        plan_cascade(step)
