# SPDX-License-Identifier: Apache-2.0
"""Forest: what is derived, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from depcache.errors import PromptError, shorten
from depcache.prompt.forest import MAX_LEVELS, Forest
from tests.depcache.prompt.make import forests


def test_derived_numbers_of_a_small_forest():
    #      0 1 | 2 3 4 | 5 6 | 7 8 9 10 | 11 | 12 13 | 14 ..
    #      sys    r0     a       b         c     r1     task
    forest = Forest.make(20, 2, [3, 2, 4, 1, 2], [-1, 0, 1, 0, -1])
    assert forest.starts.tolist() == [2, 5, 7, 11, 12]
    assert forest.stops.tolist() == [5, 7, 11, 12, 14]
    assert forest.subtree_stops.tolist() == [12, 11, 11, 12, 14]
    assert forest.depths.tolist() == [0, 3, 5, 3, 0]
    assert forest.trees.tolist() == [0, 0, 0, 0, 1]
    assert (forest.num_segments, forest.num_trees) == (5, 2)
    assert (forest.context_len, forest.task_start, forest.task_len) == (12, 14, 6)
    assert all(
        getattr(forest, name).dtype == np.int64
        for name in ("lens", "parents", "starts", "subtree_stops", "depths", "trees")
    )


def test_a_prompt_without_context_has_no_segments():
    forest = Forest.make(5, 4, [], [])
    assert (forest.num_segments, forest.num_trees, forest.context_len) == (0, 0, 0)
    assert (forest.task_start, forest.task_len) == (4, 1)


def test_arrays_are_read_only_and_not_those_of_the_caller():
    lens = np.array([2, 3])
    forest = Forest.make(10, 0, lens, np.array([-1, 0]))
    lens[0] = 99
    assert forest.lens.tolist() == [2, 3]
    with pytest.raises(ValueError, match="read-only"):
        forest.lens[0] = 1


@given(forests())
def test_a_subtree_ends_where_the_next_segment_that_is_no_descendant_starts(forest: Forest):
    parents = forest.parents.tolist()

    def is_descendant(i: int, of: int) -> bool:
        while i >= 0 and i != of:
            i = parents[i]
        return i == of

    for i in range(forest.num_segments):
        others = [j for j in range(i + 1, forest.num_segments) if not is_descendant(j, i)]
        expected = int(forest.starts[others[0]]) if others else forest.task_start
        assert forest.subtree_stops[i] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((True, 0, [1], [-1]), "number of prompt tokens is True"),
        ((10.0, 0, [1], [-1]), "number of prompt tokens is 10.0"),
        ((0, 0, [], []), "1 to"),
        ((2**31, 0, [], []), "1 to"),
        ((10, -1, [1], [-1]), "system length is -1"),
        ((10, 10, [], []), "system length is 10"),
        ((10, "2", [1], [-1]), "system length is '2'"),
        ((10, 10**30, [1], [-1]), "system length is 1000"),
        ((10, 0, [0], [-1]), "segment 0 has length 0"),
        ((10, 0, [1, -3], [-1, 0]), "segment 1 has length -3"),
        ((10, 0, [11], [-1]), "segment 0 has length 11"),
        ((10, 0, [5, 5], [-1, 0]), "no token for the task"),
        ((10, 1, [9], [-1]), "no token for the task"),
        ((10, 0, [1, 1], [-1]), "2 segment lengths but 1"),
        ((10, 0, [1], [0]), "segment 0 has parent 0"),
        ((10, 0, [1, 1], [-1, 1]), "segment 1 has parent 1"),
        ((10, 0, [1, 1], [-1, -2]), "segment 1 has parent -2"),
        ((10, 0, [1, 1, 1], [-1, -1, 0]), "pre-order"),
        ((10, 0, [1, 1, 1, 1], [-1, 0, 0, 1]), "pre-order"),
        ((10, 0, [1, True], [-1, 0]), "True is among the segment lengths"),
        ((10, 0, [1.0], [-1]), "1.0 is among the segment lengths"),
        ((10, 0, ["1"], [-1]), "'1' is among the segment lengths"),
        ((10, 0, [1], [None]), "None is among the segment parents"),
        ((10, 0, [1], [-(10**19)]), "no 64-bit integer"),
        ((10, 0, [10**18, 1], [-1, 0]), "segment 0 has length 10000"),
        ((10, 0, [1] * 11, [-1] * 11), "11 segment lengths in a prompt of 10"),
        ((10, 0, 5, [-1]), "segment lengths are 5"),
        ((10, 0, "11", [-1, 0]), "segment lengths are '11'"),
        ((10, 0, [[1]], [-1]), "among the segment lengths"),
        ((10, 0, np.array([1.5]), [-1]), "float64"),
        ((10, 0, np.array([[1]]), [-1]), "shape"),
        ((10, 0, np.array([2**64 - 1], np.uint64), [-1]), "no 64-bit integer"),
        ((10, 0, np.array([True]), [-1]), "bool"),
    ],
)
def test_wrong_numbers_are_refused_with_a_sentence(arguments, message):
    with pytest.raises(PromptError, match=message) as caught:
        Forest.make(*arguments)
    assert len(str(caught.value)) < 450


def test_a_very_deep_tree_is_refused_and_the_deepest_allowed_is_not():
    def chain(num_segments: int) -> Forest:
        return Forest.make(
            num_segments + 1, 0, [1] * num_segments, list(range(-1, num_segments - 1))
        )

    assert chain(MAX_LEVELS).depths[-1] == MAX_LEVELS - 1
    with pytest.raises(PromptError, match="deep"):
        chain(MAX_LEVELS + 1)


def test_a_million_segments_in_a_small_prompt_are_refused_at_once():
    with pytest.raises(PromptError, match="1000000 segment lengths"):
        Forest.make(100, 0, [1] * 10**6, [-1] * 10**6)


def test_shorten_never_raises_and_never_grows():
    nested: list = []
    for _ in range(100_000):
        nested = [nested]

    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    for value in ("x" * 10**6, 10**10_000, nested, Broken(), [Broken()], {"a": nested}, "\ud800"):
        assert len(shorten(value)) <= 120
