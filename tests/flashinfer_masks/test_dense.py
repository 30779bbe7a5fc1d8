# SPDX-License-Identifier: Apache-2.0
"""The oracle itself, against masks written down by hand and one written another way."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_masks import Step, dense_mask
from tests.flashinfer_masks.make import joined_structures, make_step, make_structure, steps


def picture(mask: np.ndarray) -> list[str]:
    return ["".join("#" if seen else "." for seen in row) for row in mask]


def test_mask_of_a_forest_in_pre_order() -> None:
    structure = make_structure(1, [(-1, 1), (0, 1), (0, 2), (-1, 1)], task_len=2)
    assert picture(dense_mask(make_step(structure, [], 0, 8))) == [
        "#.......",
        "##......",
        "###.....",
        "##.#....",
        "##.##...",
        "#....#..",
        "#######.",
        "########",
    ]


def test_mask_of_shuffled_hits_has_one_row_per_new_token() -> None:
    structure = make_structure(1, [(-1, 1), (0, 1), (0, 2), (-1, 1)], task_len=2)
    # Rows: second tree, root of the first, system, first child | second child, task.
    step = make_step(structure, [5, 1, 0, 2], 0, 4)
    assert picture(dense_mask(step)) == [
        ".##.#...",
        ".##.##..",
        "#######.",
        "########",
    ]


def test_mask_of_generated_rows_is_causal() -> None:
    structure = make_structure(0, [(-1, 1), (-1, 1)], task_len=1)
    assert picture(dense_mask(make_step(structure, [1, 0], 0, 3))) == ["###..", "####.", "#####"]


def test_oracle_ignores_what_the_structure_derives() -> None:
    structure = make_structure(1, [(-1, 2), (0, 1), (0, 1)], task_len=1)
    zeros = np.zeros(structure.num_tokens, np.int64)
    broken = dataclasses.replace(structure, starts=zeros, subtree_stops=zeros, node_depths=zeros)
    # `Step` checks that parents have rows, by what is derived.
    vars(broken).update(ends=zeros, parent_tokens=structure.parent_tokens)
    step = make_step(structure, [0], 0, 5)
    broken_step = Step(broken, step.order, 1, 5)
    np.testing.assert_array_equal(dense_mask(step), dense_mask(broken_step))


def mask_by_pairs(step: Step) -> np.ndarray:
    """As `dense_mask`, pair by pair through a matrix of ancestors."""
    structure = step.structure
    lens, parents = structure.lens.tolist(), structure.parents.tolist()
    num_segments = len(lens)

    # An ancestor matrix over segments: a child has its parent's ancestors, and itself.
    is_ancestor = np.eye(num_segments, dtype=bool)
    for segment, parent in enumerate(parents):
        if parent >= 0:
            is_ancestor[segment] |= is_ancestor[parent]

    # A joined tree has what its root is joined to, and what these have.
    for root, seen in structure.joins:
        has = is_ancestor[list(seen)].any(axis=0)
        is_ancestor[
            root : int(np.searchsorted(structure.starts, structure.subtree_stops[root]))
        ] |= has
    recomputed = set(structure.recomputed.tolist())

    segment_of: list[int] = []
    for segment, num_tokens in enumerate(lens):
        segment_of += [segment] * num_tokens
    context_start = structure.system_len
    task_start = context_start + len(segment_of)

    prompt = np.asarray(step.order).tolist()
    generated = range(len(prompt), step.num_prefix + step.num_new)
    index_of_row = [*prompt, *generated][: step.num_prefix + step.num_new]

    mask = np.zeros((step.num_new, len(index_of_row)), bool)
    for query, i in enumerate(index_of_row[step.num_prefix :]):
        for row, j in enumerate(index_of_row):
            if j > i:
                continue
            if i >= task_start or i in recomputed or j < context_start:
                mask[query, row] = True  # the task sees all, and all see the system
            else:
                above = segment_of[j - context_start]
                below = segment_of[i - context_start]
                mask[query, row] = is_ancestor[below, above]
    return mask


def test_mask_of_a_join_has_what_it_sees_and_what_that_sees() -> None:
    # Segments: 0, and 1 below it; 2; the join 3 sees 1 and 2, and 4 is below 3; 5 sees 4 alone.
    segments = [(-1, 1), (0, 1), (-1, 1), (-1, 1), (3, 1), (-1, 1)]
    structure = make_structure(1, segments, task_len=1, joins={3: [1, 2], 5: [4]})
    assert picture(dense_mask(make_step(structure, [], 0, 8))) == [
        "#.......",
        "##......",
        "###.....",
        "#..#....",
        "#####...",
        "######..",
        "#######.",
        "########",
    ]


def test_mask_of_a_recomputed_token_is_causal() -> None:
    structure = make_structure(1, [(-1, 1), (-1, 2), (-1, 1)], task_len=1)
    structure = structure.recompute(np.array([3]))
    assert picture(dense_mask(make_step(structure, [], 0, 6))) == [
        "#.....",
        "##....",
        "#.#...",
        "####..",
        "#...#.",
        "######",
    ]


@settings(max_examples=100, deadline=None)
@given(step=st.one_of(steps(), steps(joined_structures(recomputes=True))))
def test_the_oracle_equals_one_written_another_way(step: Step) -> None:
    np.testing.assert_array_equal(dense_mask(step), mask_by_pairs(step))
