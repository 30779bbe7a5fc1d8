# SPDX-License-Identifier: Apache-2.0
"""The plan `custom_mask`: its array and its runs are the oracle's; the causal ones beside it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from flashinfer_masks import (
    Runs,
    Step,
    causal_mask,
    causal_runs,
    dense_mask,
    plan_masked,
    plan_runs,
)
from tests.flashinfer_masks.make import all_steps, make_step, make_structure


def unroll(runs: Runs) -> np.ndarray:
    """The mask, bool (queries, keys); fails where runs are empty, overlap or do not ascend."""
    edges = np.stack((runs.starts, runs.stops), axis=1).ravel()
    assert (np.diff(edges)[::2] > 0).all()
    assert (np.diff(edges) >= 0).all()
    flat = np.zeros(runs.size, bool)
    for start, stop in zip(runs.starts, runs.stops, strict=True):
        flat[start:stop] = True
    return flat.reshape(runs.num_queries, runs.num_keys)


@settings(max_examples=300, deadline=None)
@given(step=all_steps())
def test_mask_is_the_oracles(step: Step) -> None:
    mask = plan_masked(step).mask
    assert mask.dtype == bool
    assert mask.flags.c_contiguous
    np.testing.assert_array_equal(mask, dense_mask(step))


@pytest.mark.parametrize("num_segments", [50, 1000])
def test_mask_is_the_oracles_across_blocks_of_queries(num_segments: int) -> None:
    parents = [-1 if segment % 5 == 0 else segment - segment % 5 for segment in range(num_segments)]
    structure = make_structure(3, [(parent, 3) for parent in parents], task_len=2)
    step = make_step(structure, [], 0, 153)
    np.testing.assert_array_equal(plan_masked(step).mask, dense_mask(step))


def test_mask_is_the_oracles_where_an_index_needs_more_than_16_bits() -> None:
    structure = make_structure(65_530, [(-1, 4), (0, 3), (0, 3), (-1, 2)], task_len=2)
    step = make_step(structure, list(range(65_530)), 0, 14)
    np.testing.assert_array_equal(plan_masked(step).mask, dense_mask(step))


@settings(max_examples=300, deadline=None)
@given(step=all_steps())
def test_runs_are_the_oracles_mask_with_its_keys_in_pre_order(step: Step) -> None:
    plan = plan_runs(step)
    assert plan.kv_rows.dtype == np.int32
    assert step.indices[plan.kv_rows].tolist() == sorted(step.indices.tolist())
    np.testing.assert_array_equal(unroll(plan.runs), dense_mask(step)[:, plan.kv_rows])


def test_a_query_has_a_run_for_the_system_and_for_each_segment_above_it() -> None:
    structure = make_structure(3, [(-1, 4), (0, 3), (0, 2)], task_len=1)
    runs = plan_runs(make_step(structure, list(range(7)), 0, 6)).runs
    keys = zip(runs.starts % runs.num_keys, runs.stops - runs.starts, strict=True)
    # Computed are two segments, one behind its parent and one not, and the task.
    assert [*keys] == [
        *((0, 3), (3, 4), (7, 1)),
        *((0, 3), (3, 4), (7, 2)),
        *((0, 3), (3, 4), (7, 3)),
        *((0, 3), (3, 4), (10, 1)),
        *((0, 3), (3, 4), (10, 2)),
        (0, 13),
    ]


@pytest.mark.parametrize("shape", [(2, 4), (4, 4), (1, 1), (0, 4), (0, 0)])
def test_causal_runs_are_those_of_the_causal_mask(shape: tuple[int, int]) -> None:
    assert unroll(causal_runs(*shape)).tolist() == causal_mask(*shape).tolist()


def test_causal_mask_is_aligned_to_the_bottom_right() -> None:
    assert causal_mask(2, 4).tolist() == [[True, True, True, False], [True] * 4]
    assert causal_mask(0, 4).shape == (0, 4)
