# SPDX-License-Identifier: Apache-2.0
"""`Structure` and `Step`: what they derive, against the definition and against exact ids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from flashinfer_masks import Step, Structure, StructureError, dense_mask
from tests.flashinfer_masks.make import (
    joined_structures,
    make_step,
    make_structure,
    steps,
    structures,
)


def test_derived_arrays_of_a_small_forest() -> None:
    #            index   0 1 | 2 3  4  5 6 | 7 | 8
    #            segment sys | 0 0  1  2 2 | 3 | task
    structure = make_structure(2, [(-1, 2), (0, 1), (0, 2), (-1, 1)], task_len=1)
    assert structure.starts.tolist() == [2, 4, 5, 7]
    assert structure.subtree_stops.tolist() == [7, 5, 7, 8]
    assert structure.ends.tolist() == [9, 9, 7, 7, 5, 7, 7, 8, 9]
    assert structure.parent_tokens.tolist() == [-1, 0, 1, 2, 3, 3, 5, 1, 7]
    assert structure.tree_starts.tolist() == [2, 7]
    assert structure.node_levels.tolist() == [0, 1, 2, 2, 1]
    assert structure.node_depths.tolist() == [0, 2, 4, 4, 2]
    assert (structure.task_start, structure.num_segments, structure.num_trees) == (8, 4, 2)


def test_a_join_sits_behind_the_deepest_of_what_it_sees() -> None:
    # Segments 0 and, below it, 1; 2; the join 3 sees 1 and 2; 4 is below it; 5 sees 4 only.
    segments = [(-1, 2), (0, 3), (-1, 1), (-1, 1), (3, 1), (-1, 1)]
    structure = make_structure(1, segments, task_len=1, joins={3: [1, 2], 5: [4]})
    assert structure.joins == ((3, (1, 2)), (5, (4,)))
    assert structure.joined.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert structure.joined_indptr.tolist() == [0, 0, 0, 3, 8]
    assert structure.joined_lens.tolist() == [0, 0, 6, 8]
    assert structure.trees.tolist() == [0, 0, 1, 2, 2, 3]
    assert structure.node_depths.tolist() == [0, 1, 3, 1, 6, 7, 8]
    assert structure.node_above.tolist() == [0, 1, 3, 1, 7, 8, 9]
    assert structure.parent_tokens.tolist() == [-1, 0, 1, 2, 3, 4, 0, -1, 7, -1, 9]


@pytest.mark.parametrize(
    ("joins", "message"),
    [
        ({1: [0]}, "segment 1 is joined to others but is no root"),
        ({9: [0]}, "segment 9 is joined to others but is no root"),
        ({-1: [0]}, "segment -1 is joined to others but is no root"),
        ({2: []}, "name at least one segment"),
        ({2: [0, 0]}, "each once"),
        ({3: [2, 0]}, "in ascending order"),
        ({2: [2]}, "segment 2 is joined to 2: join it only to segments that come before it"),
        ({2: [3]}, "come before it"),
        ({2: [-1]}, "segment 2 is joined to -1"),
        ({2: [0, 1]}, "segment 2 is joined to 0, which it sees through another"),
        ({2: [1], 3: [0, 2]}, "segment 3 is joined to 0, which it sees through another"),
    ],
)
def test_joins_that_are_refused(joins: dict[int, list[int]], message: str) -> None:
    with pytest.raises(StructureError, match=message):
        make_structure(1, [(-1, 1), (0, 1), (-1, 1), (-1, 1)], task_len=1, joins=joins)


def test_a_tree_is_joined_to_a_bounded_number_of_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [(-1, 1), (-1, 1), (-1, 1), (-1, 1)]
    monkeypatch.setattr("flashinfer_masks.joins.MAX_JOINED", 2)
    make_structure(1, segments, task_len=1, joins={3: [0, 1]})
    with pytest.raises(StructureError, match="joined to 3 segments, more than 2"):
        make_structure(1, segments, task_len=1, joins={3: [0, 1, 2]})


@settings(max_examples=200, deadline=None)
@given(structure=joined_structures())
def test_a_joined_segment_sees_so_many_tokens(structure: Structure) -> None:
    mask = dense_mask(make_step(structure, [], 0, structure.num_tokens))
    seen = mask[structure.starts].sum(axis=1) - 1
    assert structure.node_above[1:].tolist() == seen.tolist()
    # On the longest way down: nothing that is seen sits at or behind the own position.
    positions = np.arange(structure.num_tokens)
    nodes = np.repeat(np.arange(structure.num_segments + 1), structure.node_lens)
    positions[: structure.task_start] += (structure.node_depths - structure.node_starts)[nodes]
    for token in range(structure.task_start):
        above = positions[np.flatnonzero(mask[token])[:-1]]
        assert above.max(initial=-1) == positions[token] - 1


def test_without_a_system_the_trees_have_nothing_above() -> None:
    structure = make_structure(0, [(-1, 1), (-1, 2)], task_len=1)
    assert structure.parent_tokens.tolist() == [-1, -1, 1, 2]
    assert structure.node_depths.tolist() == [0, 0, 0]


def test_a_prompt_without_context_has_no_trees() -> None:
    structure = make_structure(3, [], task_len=2)
    assert (structure.task_start, structure.num_trees) == (3, 0)
    assert structure.ends.tolist() == [5] * 5


@settings(max_examples=200, deadline=None)
@given(structure=structures())
def test_following_parent_tokens_visits_what_a_token_sees(structure: Structure) -> None:
    step = make_step(structure, [], 0, structure.num_tokens)
    mask = dense_mask(step)
    for token in range(structure.task_start):
        seen, above = set(), token
        while above >= 0:
            seen.add(above)
            above = int(structure.parent_tokens[above])
        assert seen == set(np.flatnonzero(mask[token]).tolist())


@settings(max_examples=200, deadline=None)
@given(structure=structures())
def test_depth_counts_the_tokens_above_a_segment(structure: Structure) -> None:
    mask = dense_mask(make_step(structure, [], 0, structure.num_tokens))
    seen = mask[structure.starts].sum(axis=1) - 1
    assert structure.node_depths[1:].tolist() == seen.tolist()


def test_rows_of_a_step_with_shuffled_hits_and_generated_tokens() -> None:
    structure = make_structure(2, [(-1, 2), (0, 1), (-1, 1)], task_len=1)
    step = Step(structure, np.array([3, 0, 2, 1, 4, 5, 6]), num_prefix=4, num_new=5)
    assert step.indices.tolist() == [3, 0, 2, 1, 4, 5, 6, 7, 8]
    assert step.new_indices.tolist() == [4, 5, 6, 7, 8]
    assert step.row_of.tolist() == [1, 3, 2, 0, 4, 5, 6]
    assert (step.context_start, step.tail_start, step.num_rows) == (0, 2, 9)


def test_rows_of_later_chunks_are_not_there_yet() -> None:
    structure = make_structure(2, [(-1, 2), (0, 1), (-1, 1)], task_len=1)
    step = make_step(structure, [], 1, 3)
    assert step.row_of.tolist() == [0, 1, 2, 3, -1, -1, -1]
    assert (step.context_start, step.tail_start) == (1, 3)


@settings(max_examples=200, deadline=None)
@given(step=steps())
def test_new_rows_are_system_then_context_then_task(step: Step) -> None:
    structure = step.structure
    groups = np.digitize(step.new_indices, [structure.system_len, structure.task_start])
    expected = [0] * step.context_start + [1] * (step.tail_start - step.context_start)
    assert groups.tolist() == expected + [2] * (step.num_new - step.tail_start)
