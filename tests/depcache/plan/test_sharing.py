# SPDX-License-Identifier: Apache-2.0
"""Shared tokens against sets of root-to-token paths."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.plan.sharing import Sharing
from tests.depcache.plan.test_segments import make_table
from tests.helpers.prompts import TreePrompt
from tests.helpers.strategies import prompts

tree_prompts = prompts(st.just("tree"), twins=True)


def paths_of(prompt: TreePrompt) -> list[tuple[int, ...]]:
    """The way from the root to every token of system and context, in pre-order."""
    table = make_table(prompt)
    ends: list[tuple[int, ...]] = []
    paths: list[tuple[int, ...]] = []
    for start, stop, parent in zip(table.starts, table.stops, table.parents, strict=True):
        path = ends[parent] if parent >= 0 else ()
        for token in table.tokens[start:stop]:
            path = (*path, token)
            paths.append(path)
        ends.append(path)
    return paths


@settings(max_examples=150, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.booleans(), tree_prompts, st.sampled_from(["a", "b"])), max_size=40
    )
)
def test_any_two_members_share_the_paths_that_both_have(changes: list) -> None:
    sharing = Sharing()
    members: dict[int, tuple[str, set[tuple[int, ...]]]] = {}
    for is_leaving, prompt, namespace in changes:
        if is_leaving and members:
            row = min(members)
            sharing.remove(row)
            del members[row]
        else:
            row = sharing.add(namespace, make_table(prompt))
            assert row not in members
            members[row] = (namespace, set(paths_of(prompt)))
    assert len(sharing) == len(members)
    for a, (space_a, paths_a) in members.items():
        for b, (space_b, paths_b) in members.items():
            expected = len(paths_a & paths_b) if space_a == space_b else 0
            assert sharing.shared[a, b] == expected
    unused = [row for row in range(len(sharing.shared)) if row not in members]
    assert not sharing.shared[unused].any() and not sharing.shared[:, unused].any()


def test_more_members_than_rows_at_first() -> None:
    sharing = Sharing()
    table = make_table(TreePrompt([1, 2], [([3], [])], [4], "tree"))
    rows = [sharing.add(None, table) for _ in range(50)]
    assert len(set(rows)) == 50
    assert (sharing.shared[rows][:, rows] == 3).all()
    for row in rows:
        sharing.remove(row)
    assert len(sharing) == 0 and not sharing.shared.any()
