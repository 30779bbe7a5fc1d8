# SPDX-License-Identifier: Apache-2.0
"""Several prompts in one plan: each row sees what it sees alone, and nothing of other prompts."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings

from flashinfer_masks import Step
from flashinfer_masks.batches import Call, PlainStep, PlanName, choose_plan, plan_batch
from flashinfer_masks.masked import causal_mask
from tests.flashinfer_masks.make import batches, make_step, make_structure, mask_of

every_plan = pytest.mark.parametrize("plan", get_args(PlanName))


def oracle(steps: list[Step | PlainStep]) -> np.ndarray:
    """bool (all new rows, all rows), the rows of each prompt behind those of the one before."""
    masks = [mask_of(step) for step in steps]
    whole = np.zeros([sum(mask.shape[axis] for mask in masks) for axis in (0, 1)], bool)
    row = column = 0
    for mask in masks:
        whole[row : row + mask.shape[0], column : column + mask.shape[1]] = mask
        row, column = row + mask.shape[0], column + mask.shape[1]
    return whole


def count(call: Call, steps: list[Step | PlainStep], counts: np.ndarray) -> None:
    """Add the pairs of a call to `counts`, as a kernel reads its arrays."""
    bases = np.cumsum([0, *(step.num_rows for step in steps)])[:-1]
    keys = call.batch.kv_rows + np.repeat(bases, call.kv_counts)
    for i in range(call.batch.num_requests):
        q_rows = call.batch.q_rows[slice(*call.batch.q_indptr[i : i + 2])]
        kv_rows = keys[slice(*call.batch.kv_indptr[i : i + 2])]
        shape = (len(q_rows), len(kv_rows))
        if call.masks is not None:
            first = call.masks.mask_indptr[i]
            bits = np.unpackbits(
                call.masks.bits[first : call.masks.mask_indptr[i + 1]], bitorder="little"
            )
            mask = bits[: np.prod(shape)].reshape(shape).astype(bool)
        elif call.kind == "causal":
            mask = causal_mask(*shape)
        else:
            mask = np.ones(shape, bool)
        np.add.at(counts, (q_rows[:, None], kv_rows[None, :]), mask)


@every_plan
@settings(max_examples=100, deadline=None)
@given(batch=batches())
def test_a_row_sees_what_it_sees_alone(plan: PlanName, batch: list[Step | PlainStep]) -> None:
    planned = plan_batch(batch, plan)
    expected = oracle(batch)
    counts = np.zeros(expected.shape, np.int64)
    for call in (*planned.calls, *planned.merged):
        count(call, batch, counts)
    np.testing.assert_array_equal(counts, expected)
    rows = np.concatenate([call.batch.q_rows for call in planned.calls])
    assert sorted(rows.tolist()) == list(range(planned.num_queries)) == list(range(len(expected)))


@every_plan
def test_plain_prompts_alone_take_one_call(plan: PlanName) -> None:
    planned = plan_batch([PlainStep(4, 2), PlainStep(0, 3)], plan)
    assert len(planned.calls) == 1
    assert planned.merged == ()
    assert planned.calls[0].batch.q_indptr.tolist() == [0, 2, 5]
    assert planned.calls[0].batch.kv_indptr.tolist() == [0, 6, 9]


@pytest.mark.parametrize("plan", ["segments", "cascade", "blocks"])
def test_work_grows_with_the_trees_and_not_with_the_square_of_the_prompt(plan: PlanName) -> None:
    def work(num_trees: int) -> int:
        segments = [
            (parent if parent < 0 else 3 * tree, length)
            for tree in range(num_trees)
            for parent, length in ((-1, 4), (0, 3), (0, 3))
        ]
        structure = make_structure(3, segments, task_len=1)
        planned = plan_batch([make_step(structure, [], 0, structure.num_tokens)], plan)
        calls = [*planned.calls, *planned.merged]
        return sum(
            int((np.diff(each.batch.q_indptr) * np.diff(each.batch.kv_indptr)).sum())
            for each in calls
        )

    assert work(40) < 2.2 * work(20)


def recompute(indices: np.ndarray) -> Step:
    """100 rows of 10 tokens in the cache, of which `indices` are computed again, and a task."""
    structure = make_structure(0, [(-1, 10)] * 100, task_len=4).recompute(indices)
    hits = np.setdiff1d(np.arange(1000), indices)
    return make_step(structure, hits.tolist(), 0, len(indices) + 4)


def test_auto_takes_masks_only_where_rows_are_recomputed_one_by_one() -> None:
    trees = make_structure(3, [(-1, 60)] * 20, task_len=2)
    whole = make_step(trees, [], 0, trees.num_tokens)
    beginnings = recompute((np.arange(100)[:, None] * 10 + np.arange(3)).ravel())
    scattered = recompute(np.arange(0, 1000, 4))
    assert choose_plan([PlainStep(0, 50)]) == "segments"
    assert choose_plan([whole, PlainStep(9, 1)]) == "segments"
    assert choose_plan([beginnings]) == "segments"
    assert choose_plan([scattered, PlainStep(0, 5000)]) == "custom_mask"
    # One plan serves the whole batch, and most of this one's rows stand together.
    assert choose_plan([scattered, beginnings, beginnings]) == "segments"
    assert choose_plan([scattered, *[whole] * 4]) == "segments"
