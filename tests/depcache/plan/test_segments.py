# SPDX-License-Identifier: Apache-2.0
"""The segment table against the nested prompt it was made from."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from depcache.cache.radix import to_tokens
from depcache.plan import SegmentTable
from depcache.prompt.forest import Forest
from depcache.prompt.layout import read_layout
from tests.helpers.prompts import TreePrompt
from tests.helpers.strategies import prompts


def make_table(prompt: TreePrompt) -> SegmentTable:
    forest = Forest.make(
        prompt.num_tokens, len(prompt.system), prompt.segment_lens, prompt.segment_parents
    )
    return SegmentTable.make(np.array(prompt.tokens, np.int64), forest, read_layout(prompt.layout))


@settings(max_examples=200, deadline=None)
@given(prompt=prompts(twins=True))
def test_every_token_has_its_position_and_every_segment_its_place(prompt: TreePrompt) -> None:
    table = make_table(prompt)
    assert table.tokens == to_tokens(table.key).tolist() == prompt.tokens
    assert (table.num_tokens, table.task_start) == (prompt.num_tokens, prompt.num_context)
    assert table.positions.tolist() == prompt.positions
    assert table.placed == [prompt.positions[start] for start in table.starts]
    covered = [
        i for start, stop in zip(table.starts, table.stops, strict=True) for i in range(start, stop)
    ]
    assert covered == list(range(prompt.num_context))


@settings(max_examples=200, deadline=None)
@given(prompt=prompts(twins=True))
def test_a_segment_follows_the_last_token_of_its_parent(prompt: TreePrompt) -> None:
    table = make_table(prompt)
    for start, parent in zip(table.starts, table.parents, strict=True):
        assert prompt.parents[start] == (table.stops[parent] - 1 if parent >= 0 else -1)


def test_the_system_is_the_first_segment_and_the_parent_of_every_tree() -> None:
    table = make_table(TreePrompt([1, 2], [([3], [([4], [])]), ([5], [])], [6]))
    assert (table.num_segments, table.parents) == (4, [-1, 0, 1, 0])


def test_without_a_system_every_tree_is_a_root() -> None:
    table = make_table(TreePrompt([], [([3], [([4], [])]), ([5], [])], [6]))
    assert (table.num_segments, table.parents) == (3, [-1, 0, -1])


def test_the_path_of_a_segment_is_all_tokens_from_the_first_to_its_last() -> None:
    table = make_table(TreePrompt([1, 2], [([3], [([4], [])]), ([5], [])], [6]))
    paths = [to_tokens(table.path(segment)).tolist() for segment in range(4)]
    assert paths == [[1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 5]]
