# SPDX-License-Identifier: Apache-2.0
"""Position layouts against an oracle that walks token by token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depcache.errors import PromptError
from depcache.prompt.forest import Forest
from depcache.prompt.layout import (
    LAYOUTS,
    Layout,
    segment_positions,
    task_position,
    token_positions,
)
from tests.depcache.prompt.make import forests


def token_positions_ref(forest: Forest, layout: Layout) -> list[int]:
    """Each context token sits one behind its parent token; the layout places the roots."""
    positions = list(range(forest.system_len))
    last_of: dict[int, int] = {}  # index of each segment's last token
    root_position = next_free = forest.system_len
    for segment in range(forest.num_segments):
        parent = int(forest.parents[segment])
        if parent < 0 and layout == "staggered":
            root_position = next_free
        for k in range(int(forest.lens[segment])):
            if layout == "sequential":
                position = len(positions)
            elif k:
                position = positions[-1] + 1
            elif parent < 0:
                position = root_position
            else:
                position = positions[last_of[parent]] + 1
            positions.append(position)
            next_free = max(next_free, position + 1)
        last_of[segment] = len(positions) - 1
    while len(positions) < forest.num_tokens:
        positions.append(next_free)
        next_free += 1
    return positions


@given(forests(), st.sampled_from(LAYOUTS))
def test_positions_equal_those_found_token_by_token(forest: Forest, layout: Layout):
    expected = token_positions_ref(forest, layout)
    assert token_positions(forest, layout).tolist() == expected
    firsts = [expected[start] for start in forest.starts.tolist()]
    assert segment_positions(forest, layout).tolist() == firsts
    assert task_position(forest, layout) == expected[forest.task_start]


def test_the_three_layouts_of_a_small_forest():
    forest = Forest.make(12, 1, [2, 3, 1, 2], [-1, 0, 0, -1])
    positions = {layout: token_positions(forest, layout).tolist() for layout in LAYOUTS}
    assert positions == {
        "tree": [0, 1, 2, 3, 4, 5, 3, 1, 2, 6, 7, 8],
        "staggered": [0, 1, 2, 3, 4, 5, 3, 6, 7, 8, 9, 10],
        "sequential": list(range(12)),
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_context_all_layouts_count_from_zero(layout: Layout):
    assert token_positions(Forest.make(5, 2, [], []), layout).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("layout", ["parallel", None, 1, ["tree"]])
def test_an_unknown_layout_is_refused_with_the_choices(layout):
    with pytest.raises(PromptError, match="tree, staggered, sequential"):
        segment_positions(Forest.make(5, 2, [], []), layout)
