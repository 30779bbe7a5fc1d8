# SPDX-License-Identifier: Apache-2.0
"""The plan `blocks`: its parts by exact numbers, its masks, and how little memory it takes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from flashinfer_masks import Step, fused, pack_runs, plan_blocks, plan_segments
from flashinfer_masks.batches import plan_batch
from flashinfer_masks.reference import count_work
from tests.flashinfer_masks.make import (
    assert_plan_is_exact,
    joined_structures,
    make_step,
    make_structure,
    pack_masks,
    steps,
)

fused_steps = steps(joined_structures(recomputes=True), closed_hits=False)


@pytest.fixture(params=[1, 2, 3])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random prompts have few tokens, so blocks of few rows: many of them, and many levels."""
    monkeypatch.setattr(fused, "BLOCK_ROWS", request.param)


several = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.usefixtures("small_blocks")
@several
@given(step=fused_steps)
def test_many_blocks_are_exact(step: Step) -> None:
    assert_plan_is_exact(plan_blocks(step), step)


@pytest.mark.usefixtures("small_blocks")
@several
@given(step=fused_steps)
def test_masks_do_not_overlap_and_a_level_has_each_key_once(step: Step) -> None:
    plan = plan_blocks(step)
    for parts in (np.concatenate((plan.causal, plan.masked)), *plan.levels):
        in_order = parts[np.argsort(parts[:, 2])]
        assert (in_order[:-1, 3] <= in_order[1:, 2]).all()
        assert (in_order[:, 2] < in_order[:, 3]).all()
        assert (in_order[:-1, 1] <= in_order[1:, 0]).all()


@pytest.mark.usefixtures("small_blocks")
@several
@given(step=fused_steps)
def test_runs_are_packed_as_the_masks_are(step: Step) -> None:
    plan = plan_blocks(step)
    masks = [
        np.arange(first_key, stop_key)[None] <= plan.indices[first:stop, None]
        for first, stop, first_key, stop_key in plan.masked.tolist()
    ]
    packed, expected = pack_runs(plan.masked_runs()), pack_masks(masks)
    np.testing.assert_array_equal(packed.bits, expected.bits)
    np.testing.assert_array_equal(packed.mask_indptr, expected.mask_indptr)


def test_parts_of_a_small_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two of system, ten of context of which six are computed again, a task of two.
    monkeypatch.setattr(fused, "BLOCK_ROWS", 2)
    structure = make_structure(2, [(-1, 5), (-1, 5)], task_len=2)
    structure = structure.recompute(np.array([3, 5, 6, 7, 9, 10]))
    hits = [11, 0, 2, 1, 4, 8]
    plan = plan_blocks(make_step(structure, hits, 0, 8))
    assert plan.chains.num_requests == 0
    assert plan.rows.tolist() == list(range(8))
    assert plan.indices.tolist() == [3, 5, 6, 7, 9, 10, 12, 13]
    assert plan.kv_rows.tolist() == [1, 3, 2, 6, 4, 7, 8, 9, 5, 10, 11, 0, 12, 13]
    assert plan.masked.tolist() == [[0, 2, 3, 6]]
    assert plan.causal.tolist() == [[2, 4, 6, 8], [4, 6, 9, 11], [6, 8, 12, 14]]
    assert [level.tolist() for level in plan.levels] == [
        [[0, 8, 0, 3]],
        [[2, 4, 3, 6], [6, 8, 9, 12]],
        [[4, 8, 3, 9]],
    ]


def test_a_step_that_recomputes_nothing_is_planned_as_in_segments() -> None:
    structure = make_structure(2, [(-1, 2), (0, 1), (0, 2), (-1, 2)], task_len=2)
    recomputed = structure.recompute(np.array([3]))
    # Without any; and the chunk behind the last one.
    for step in (make_step(structure, [0, 1], 0, 9), make_step(recomputed, [0, 1], 2, 2)):
        plan, expected = plan_blocks(step), plan_segments(step)
        assert len(plan.rows) == len(plan.causal) == len(plan.masked) == len(plan.levels) == 0
        assert plan.chains.q_rows.tolist() == list(range(step.num_new))
        np.testing.assert_array_equal(plan.chains.q_indptr, expected.q_indptr)
        np.testing.assert_array_equal(plan.chains.kv_indptr, expected.kv_indptr)
        np.testing.assert_array_equal(plan.chains.kv_rows, expected.kv_rows)


def make_large_step(num_context: int, num_recomputed: int) -> Step:
    """One of 30 chunks, of which any tokens are computed again."""
    rng = np.random.default_rng(0)
    lens = np.diff(np.linspace(0, num_context, 31).astype(int))
    structure = make_structure(60, [(-1, int(num)) for num in lens], task_len=25)
    context = np.arange(structure.system_len, structure.task_start)
    structure = structure.recompute(np.sort(rng.choice(context, num_recomputed, replace=False)))
    hits = np.setdiff1d(np.arange(structure.task_start), structure.recomputed)
    return make_step(structure, hits.tolist(), 0, num_recomputed + 25)


@pytest.mark.parametrize("share", [0.05, 0.15, 0.3, 0.9])
def test_no_array_grows_with_the_square_of_the_prompt(share: float) -> None:
    num_tokens = 27_000
    num_recomputed = int(share * num_tokens)
    step = make_large_step(num_tokens, num_recomputed)
    tracemalloc.start()
    planned = plan_batch([step], "blocks")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    arrays = [
        array
        for call in (*planned.calls, *planned.merged)
        for array in (
            call.batch.q_rows,
            call.batch.kv_rows,
            *([call.masks.bits] if call.masks else []),
        )
    ]
    mask_bits = 2 * num_recomputed * fused.BLOCK_ROWS / share
    assert max(array.nbytes for array in arrays) <= mask_bits / 8 + 8 * num_tokens
    # Several levels, each of them a few numbers a token; one mask for all has 4,000 bits a token
    # at 15 %, and the requests of `segments` 50,000.
    assert peak < mask_bits / 8 + 400 * num_tokens


def test_the_scores_that_are_computed_are_those_that_are_seen_and_few_more() -> None:
    step = make_large_step(4_000, 600)
    seen = int((step.new_indices + 1).sum())
    assert seen <= count_work(plan_blocks(step)) <= seen + fused.BLOCK_ROWS * 4_100
