# SPDX-License-Identifier: Apache-2.0
"""Rows that see rows: each token sees its row, what the row sees, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.prompt.forest import Forest
from depcache.prompt.seen_rows import hang_rows
from flashinfer_masks.dense import visible_ref

END = 100  # row n ends with the token 100 + n, so that a test finds it


@st.composite
def seeing_rows(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    """Rows that often begin alike, and which rows each names; in cycles, too."""
    num_rows = draw(st.integers(1, 8))
    begins = st.lists(st.integers(0, 1), max_size=4)
    rows = [[*draw(begins), END + row] for row in range(num_rows)]
    others = [[other for other in range(num_rows) if other != row] for row in range(num_rows)]
    sees = [
        sorted(draw(st.sets(st.sampled_from(other), max_size=2))) if other else []
        for other in others
    ]
    return rows, sees


def reach(sees: list[list[int]], row: int) -> set[int]:
    """Rows that are seen, directly or not; the row itself where it is in a cycle."""
    found: set[int] = set()
    todo = list(sees[row])
    while todo:
        other = todo.pop()
        if other not in found:
            found.add(other)
            todo += sees[other]
    return found


@settings(max_examples=400)
@given(seeing_rows(), st.booleans())
def test_a_token_sees_what_its_row_sees_and_its_row_up_to_itself(world, merge: bool) -> None:
    rows, sees = world
    (tokens, lens, parents), joins = hang_rows(rows, sees, merge=merge)
    forest = Forest.make(len(tokens) + 1, 0, lens, parents, joins)
    mask = visible_ref(forest.structure)
    own: dict[int, list[int]] = {}
    for row, ids in enumerate(rows):
        way = [tokens.index(END + row)]
        while len(way) < len(ids):
            way.append(int(forest.structure.parent_tokens[way[-1]]))
        own[row] = way[::-1]
        assert [tokens[index] for index in own[row]] == ids
        if not any(row in reach(sees, other) for other in reach(sees, row)):
            assert own[row][-1] in forest.stops - 1  # its end is that of a segment
    for row in own:
        seen = reach(sees, row) - {row}
        # A row that sees it too, it sees where that one comes before it.
        before = {other for other in seen if row not in reach(sees, other) or other < row}
        expected = {index for other in before for index in own[other]}
        for index in own[row]:
            expected.add(index)
            assert set(np.flatnonzero(mask[index])) == expected
    if not merge:
        assert sorted(tokens) == sorted(token for ids in rows for token in ids)


def test_one_that_is_seen_is_above_and_several_are_joined() -> None:
    rows = [[5, 1], [5, 2], [5, 3], [5, 4], [5, 6]]
    sees = [[], [], [0], [0, 1], [2, 3]]
    (tokens, lens, parents), joins = hang_rows(rows, sees, merge=False)
    assert tokens == [5, 1, 5, 3, 5, 2, 5, 4, 5, 6]
    assert (lens, parents) == ([2] * 5, [-1, 0, -1, -1, -1])
    assert joins == {3: [0, 2], 4: [1, 3]}
    (tokens, lens, parents), joins = hang_rows(rows, sees, merge=True)
    assert tokens == [5, 1, 5, 3, 2, 5, 4, 5, 6]  # the first two share their first token
    assert (lens, parents) == ([1, 1, 2, 1, 2, 2], [-1, 0, 1, 0, -1, -1])
    assert joins == {4: [1, 3], 5: [2, 4]}


def test_the_order_of_rows_changes_nothing_but_the_order_of_trees() -> None:
    rows = [[8], [9], [7], [6]]  # 7 sees 8 and 9, 6 sees 7
    (tokens, _, parents), joins = hang_rows(rows, [[], [], [0, 1], [2]], merge=False)
    assert (tokens, parents, joins) == ([8, 9, 7, 6], [-1, -1, -1, 2], {2: [0, 1]})
    (tokens, _, parents), joins = hang_rows(rows[::-1], [[1], [2, 3], [], []], merge=False)
    assert (tokens, parents, joins) == ([9, 8, 7, 6], [-1, -1, -1, 2], {2: [0, 1]})


def test_rows_that_see_each_other_are_seen_as_a_whole() -> None:
    rows = [[8], [9, 9], [7], [6]]
    (tokens, lens, parents), joins = hang_rows(rows, [[2], [], [0], [0, 1]], merge=False)
    assert (tokens, lens, parents) == ([8, 7, 9, 9, 6], [1, 1, 2, 1], [-1, 0, -1, -1])
    assert joins == {3: [1, 2]}


def test_a_prefix_of_another_row_ends_where_a_segment_ends() -> None:
    rows = [[5, 1], [5, 1, 2], [5, 1], [9], [3]]
    (tokens, lens, parents), joins = hang_rows(rows, [[], [], [], [], [0, 3]], merge=True)
    assert (tokens, lens, parents) == ([5, 1, 2, 9, 3], [2, 1, 1, 1], [-1, 0, -1, -1])
    assert joins == {3: [0, 2]}
    # Who sees the longer one sees the shorter: it is its beginning.
    _, joins = hang_rows(rows, [[], [], [], [], [0, 1, 2, 3]], merge=True)
    assert joins == {3: [1, 2]}


@pytest.mark.parametrize("merge", [False, True])
def test_a_long_chain_needs_no_recursion(merge: bool) -> None:
    rows = [[row] for row in range(1000)]
    sees = [[row - 1] if row else [] for row in range(1000)]
    (_, lens, parents), joins = hang_rows(rows, sees, merge=merge)
    assert (lens, parents, joins) == ([1] * 1000, list(range(-1, 999)), {})
