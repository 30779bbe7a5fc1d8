# SPDX-License-Identifier: Apache-2.0
"""Common pieces against sets of ways from the root, and rows that stand whole by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.plan.pieces import Pieces
from depcache.plan.segments import SegmentTable
from depcache.prompt.forest import Forest
from tests.depcache.plan.test_segments import make_table
from tests.helpers.orders import table_of
from tests.helpers.strategies import prompts

tree_prompts = prompts(st.just("tree"), twins=True)


def ways_of(table: SegmentTable) -> set[tuple[int, ...]]:
    """The tokens from the root to the end of each segment."""
    ways: list[tuple[int, ...]] = []
    for start, stop, parent in zip(table.starts, table.stops, table.parents, strict=True):
        above = ways[parent] if parent >= 0 else ()
        ways.append((*above, *table.tokens[start:stop]))
    return set(ways)


@settings(max_examples=100, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.booleans(), tree_prompts, st.sampled_from(["a", "b"])), max_size=30
    )
)
def test_any_two_members_have_the_pieces_that_both_have(changes: list) -> None:
    pieces = Pieces()
    members: dict[int, tuple[str, set[tuple[int, ...]]]] = {}
    for is_leaving, prompt, namespace in changes:
        if is_leaving and members:
            row = min(members)
            pieces.remove(row)
            del members[row]
        else:
            table = make_table(prompt)
            members[pieces.add(namespace, table)] = namespace, ways_of(table)
    assert len(pieces) == len(members)
    for a, (space_a, ways_a) in members.items():
        for b, (space_b, ways_b) in members.items():
            expected = len(ways_a & ways_b) if space_a == space_b else 0
            assert pieces.shared[a, b] == expected


def test_a_row_is_the_same_piece_however_it_is_cut() -> None:
    pieces = Pieces()
    tokens = np.array([1, 20, 21, 22, 9])
    whole, cut = (
        pieces.add(None, SegmentTable.make(tokens, Forest.make(5, 1, *segments), "tree"))
        for segments in (([3], [-1]), ([1, 2], [-1, 0]))
    )
    assert pieces.shared[whole, cut] == 2  # the system and the row


def test_what_begins_alike_is_no_common_piece() -> None:
    pieces = Pieces()
    short, long = (pieces.add(None, table_of(1, size=size)) for size in (10, 11))
    assert pieces.shared[short, long] == 1  # the system alone
    assert pieces.shared[short, short] == 2


def test_a_table_that_sees_another_set_is_another_piece() -> None:
    pieces = Pieces()
    tokens = np.array([1, 20, 21, 30, 31, 40, 41, 9])

    def joined_to(*seen: int) -> SegmentTable:
        forest = Forest.make(len(tokens), 1, [2, 2, 2], [-1, -1, -1], joins={2: seen})
        return SegmentTable.make(tokens, forest, "tree")

    with_one, with_two, again = (
        pieces.add(None, joined_to(*seen)) for seen in ((0,), (0, 1), (0, 1))
    )
    # System and both tables are common; the third one only where it sees the same.
    assert pieces.shared[with_one, with_two] == 3
    assert pieces.shared[with_two, again] == 4
