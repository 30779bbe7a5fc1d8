# SPDX-License-Identifier: Apache-2.0
"""The plan `segments`: chains by exact ids, how it degenerates, and its limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from flashinfer_masks import PlanTooLargeError, SegmentsPlan, Step, plan_segments, ragged
from tests.flashinfer_masks.make import all_steps, make_step, make_structure, steps


def requests(plan: SegmentsPlan) -> list[tuple[range, list[int]]]:
    """Each request as (new rows, KV rows)."""
    return [
        (
            range(plan.q_indptr[request], plan.q_indptr[request + 1]),
            plan.kv_rows[plan.kv_indptr[request] : plan.kv_indptr[request + 1]].tolist(),
        )
        for request in range(plan.num_requests)
    ]


@settings(max_examples=300, deadline=None)
@given(step=all_steps())
def test_queries_are_the_new_rows_in_order_and_close_their_kv_rows(step: Step) -> None:
    plan = plan_segments(step)
    assert {plan.q_indptr.dtype, plan.kv_indptr.dtype, plan.kv_rows.dtype} == {np.dtype(np.int32)}
    assert (plan.q_indptr[0], plan.q_indptr[-1]) == (0, step.num_new)
    assert (np.diff(plan.q_indptr) > 0).all()
    assert plan.kv_indptr[-1] == len(plan.kv_rows)
    for queries, kv_rows in requests(plan):
        assert kv_rows[-len(queries) :] == [step.num_prefix + row for row in queries]
        assert len(set(kv_rows)) == len(kv_rows)


@settings(max_examples=300, deadline=None)
@given(step=steps())
def test_chains_are_maximal(step: Step) -> None:
    """No two neighbouring requests could be one: the second does not see just what is above."""
    for (_, above), (queries, kv_rows) in zip(
        requests(plan_segments(step)), requests(plan_segments(step))[1:], strict=False
    ):
        assert set(kv_rows[: -len(queries)]) != set(above)


def test_a_missed_segment_and_its_first_missed_child_are_one_chain() -> None:
    # index 0 1 | 2 3 | 4 | 5 6 | 7 | 8
    #       sys | 0   | 1 | 2   | 3 | task      segments 1, 2 below 0; 3 is a tree
    structure = make_structure(2, [(-1, 2), (0, 1), (0, 2), (-1, 1)], task_len=1)
    assert requests(plan_segments(make_step(structure, [0, 1], 0, 7))) == [
        (range(3), [0, 1, 2, 3, 4]),
        (range(3, 5), [0, 1, 2, 3, 5, 6]),
        (range(5, 6), [0, 1, 7]),
        (range(6, 7), [0, 1, 2, 3, 4, 5, 6, 7, 8]),
    ]


def test_a_missed_system_continues_into_the_first_tree() -> None:
    structure = make_structure(2, [(-1, 1), (-1, 2)], task_len=1)
    assert requests(plan_segments(make_step(structure, [], 0, 6))) == [
        (range(3), [0, 1, 2]),
        (range(3, 5), [0, 1, 3, 4]),
        (range(5, 6), [0, 1, 2, 3, 4, 5]),
    ]


def test_a_half_cached_segment_starts_its_chain_at_the_first_miss() -> None:
    structure = make_structure(1, [(-1, 4), (0, 1), (0, 1)], task_len=1)
    # Rows: 2 1 0 are indices 0..2 in another order; 3 4 | 5 | 6 are missed.
    assert requests(plan_segments(make_step(structure, [2, 1, 0], 0, 5))) == [
        (range(3), [2, 1, 0, 3, 4, 5]),
        (range(3, 4), [2, 1, 0, 3, 4, 6]),
        (range(4, 5), [0, 1, 2, 3, 4, 5, 6, 7]),
    ]


def test_a_chunk_cut_inside_a_segment_continues_it_over_the_computed_rows() -> None:
    structure = make_structure(1, [(-1, 4), (-1, 3)], task_len=1)
    step = make_step(structure, [0], 2, 3)
    assert requests(plan_segments(step)) == [
        (range(2), [0, 1, 2, 3, 4]),
        (range(2, 3), [0, 5]),
    ]


def test_a_plain_prompt_is_one_causal_request() -> None:
    step = make_step(make_structure(3, [], task_len=2), [0, 1], 0, 5)
    assert requests(plan_segments(step)) == [(range(5), [0, 1, 2, 3, 4, 5, 6])]


def test_a_prompt_with_a_single_path_is_one_causal_request() -> None:
    structure = make_structure(2, [(-1, 2), (0, 3)], task_len=2)
    step = make_step(structure, [1, 0, 2], 0, 6)
    assert requests(plan_segments(step)) == [(range(6), list(range(9)))]


def test_a_fully_cached_context_leaves_one_request_for_the_task() -> None:
    structure = make_structure(1, [(-1, 1), (-1, 1)], task_len=2)
    step = make_step(structure, [2, 0, 1], 0, 2)
    assert requests(plan_segments(step)) == [(range(2), [0, 1, 2, 3, 4])]


def test_a_chunk_that_ends_before_the_task_has_no_request_for_it() -> None:
    structure = make_structure(1, [(-1, 1), (-1, 1)], task_len=2)
    step = make_step(structure, [0], 0, 2)
    assert requests(plan_segments(step)) == [(range(1), [0, 1]), (range(1, 2), [0, 2])]


def test_more_kv_rows_than_int32_counts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    step = make_step(make_structure(2, [(-1, 1), (-1, 1)], task_len=1), [], 0, 5)
    num_kv_rows = len(plan_segments(step).kv_rows)
    monkeypatch.setattr(ragged, "MAX_INT32", num_kv_rows)
    plan_segments(step)
    monkeypatch.setattr(ragged, "MAX_INT32", num_kv_rows - 1)
    with pytest.raises(PlanTooLargeError, match=f"{num_kv_rows} KV rows.*smaller chunks"):
        plan_segments(step)
