# SPDX-License-Identifier: Apache-2.0
"""The contract of every plan: the oracle's pairs, each exactly once, and its attention."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_masks import PLANS, Step
from flashinfer_masks.reference import count_work
from tests.flashinfer_masks.make import (
    assert_plan_is_exact,
    joined_structures,
    make_step,
    make_structure,
    steps,
    structures,
)

every_plan = pytest.mark.parametrize("name", PLANS)
thorough = settings(max_examples=300, deadline=None)
quick = settings(max_examples=60, deadline=None)


@every_plan
@thorough
@given(step=steps())
def test_plan_is_exact_for_any_forest_hits_and_chunk(name: str, step: Step) -> None:
    assert_plan_is_exact(PLANS[name](step), step)


@every_plan
@thorough
@given(step=steps(closed_hits=False))
def test_plan_is_exact_when_tokens_above_cached_ones_are_recomputed(name: str, step: Step) -> None:
    assert_plan_is_exact(PLANS[name](step), step)


@every_plan
@thorough
@given(step=steps(joined_structures()))
def test_plan_is_exact_for_joined_trees(name: str, step: Step) -> None:
    assert_plan_is_exact(PLANS[name](step), step)


@every_plan
@thorough
@given(step=steps(joined_structures(recomputes=True), closed_hits=False))
def test_plan_is_exact_for_recomputed_tokens(name: str, step: Step) -> None:
    assert_plan_is_exact(PLANS[name](step), step)


@every_plan
@quick
@given(step=steps(structures(system_lens=st.just(0))))
def test_plan_is_exact_without_a_system(name: str, step: Step) -> None:
    assert_plan_is_exact(PLANS[name](step), step)


@every_plan
@quick
@given(step=steps(structures(max_trees=1, max_segments=20)))
def test_plan_is_exact_for_one_tree(name: str, step: Step) -> None:
    assert_plan_is_exact(PLANS[name](step), step)


@every_plan
@quick
@given(step=steps(structures(max_segments=25, max_segment_len=1)))
def test_plan_is_exact_for_segments_of_one_token(name: str, step: Step) -> None:
    assert_plan_is_exact(PLANS[name](step), step)


@every_plan
@quick
@given(step=steps(structures(max_segments=0)))
def test_plan_is_exact_without_a_context(name: str, step: Step) -> None:
    assert_plan_is_exact(PLANS[name](step), step)


@every_plan
@pytest.mark.parametrize("num_hits", [0, 3, 100, 302])
def test_plan_is_exact_for_300_trees_of_one_token(name: str, num_hits: int) -> None:
    structure = make_structure(2, [(-1, 1)] * 300, task_len=3)
    step = make_step(structure, list(range(num_hits)), 0, structure.num_tokens - num_hits)
    assert_plan_is_exact(PLANS[name](step), step)


@every_plan
def test_plan_is_exact_for_300_trees_that_branch(name: str) -> None:
    tree = [(-1, 1), (0, 1), (0, 1)]
    forest = [
        (parent if parent < 0 else parent + 3 * number, num_tokens)
        for number in range(300)
        for parent, num_tokens in tree
    ]
    structure = make_structure(1, forest, task_len=1)
    hits = [0, *structure.starts[::6].tolist()]  # the root of every second tree
    step = make_step(structure, hits, 100, 500)
    assert_plan_is_exact(PLANS[name](step), step)


@every_plan
@quick
@given(step=steps(), data=st.data())
def test_chunks_together_attend_as_one_step(name: str, step: Step, data: st.DataObject) -> None:
    """However a prompt is cut, each row attends to the same pairs; and to no later chunk's."""
    cut = data.draw(st.integers(0, step.num_new - 1))
    whole = PLANS[name](step)
    assert_plan_is_exact(whole, step)
    if cut:
        first = Step(step.structure, step.order, step.num_prefix, cut)
        assert_plan_is_exact(PLANS[name](first), first)
    second = Step(step.structure, step.order, step.num_prefix + cut, step.num_new - cut)
    assert_plan_is_exact(PLANS[name](second), second)


@every_plan
def test_generated_rows_of_a_retracted_request_see_everything_before_them(name: str) -> None:
    structure = make_structure(2, [(-1, 2), (0, 1), (0, 2)], task_len=2)
    hits = [1, 3, 0, 2]
    for start, stop in [(0, 10), (5, 10), (6, 8), (8, 10), (9, 10)]:
        step = make_step(structure, hits, start, stop - start)
        assert_plan_is_exact(PLANS[name](step), step)


@pytest.mark.parametrize("name", ["segments", "cascade", "blocks"])
def test_work_grows_with_the_number_of_trees_not_with_its_square(name: str) -> None:
    def work(num_trees: int) -> int:
        segments = [
            (parent if parent < 0 else parent + 3 * tree, 4)
            for tree in range(num_trees)
            for parent in (-1, 0, 0)
        ]
        structure = make_structure(8, segments, task_len=1)
        # The context alone: the task sees everything, which is linear too.
        return count_work(PLANS[name](make_step(structure, list(range(8)), 0, 12 * num_trees)))

    assert work(40) == 4 * work(10)


def test_order_of_hits_changes_rows_but_not_the_work() -> None:
    structure = make_structure(3, [(-1, 2), (0, 2), (0, 3), (-1, 2)], task_len=2)
    hits = np.array([0, 1, 2, 3, 4, 7, 8, 9])
    sorted_step = make_step(structure, hits.tolist(), 0, 6)
    shuffled_step = make_step(structure, hits[[5, 0, 7, 3, 1, 6, 2, 4]].tolist(), 0, 6)
    for plan in PLANS.values():
        assert count_work(plan(sorted_step)) == count_work(plan(shuffled_step))
