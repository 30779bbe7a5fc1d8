# SPDX-License-Identifier: Apache-2.0
"""Rows that stand behind tokens of no prompt: found below these in the tree, and nowhere else."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.cache.invariants import check_tree
from depcache.plan import Lookahead, SegmentTable, look_up, match_segments, plan_request
from depcache.plan.sharing import Sharing
from depcache.prompt.forest import Forest
from tests.depcache.plan.test_request import ServedPrompts
from tests.helpers.prompts import TreePrompt, grow
from tests.helpers.strategies import prompts, runs

Ids = list[int]
trees = st.just("tree")
hidden_runs = st.lists(st.one_of(st.none(), runs), min_size=20, max_size=20)


def make_table(prompt: TreePrompt, behind: list[Ids | None]) -> SegmentTable:
    """Returns the table of a fused request that recomputes nothing."""
    forest = Forest.make(
        prompt.num_tokens, len(prompt.system), prompt.segment_lens, prompt.segment_parents
    )
    tokens, none = np.array(prompt.tokens, np.int64), np.empty(0, np.int64)
    ids = tuple(None if each is None else tuple(each) for each in behind)
    return SegmentTable.make(tokens, forest, "sequential", none, ids)


def cut(behind: list[Ids | None], prompt: TreePrompt) -> list[Ids | None]:
    return behind[: len(prompt.trees)]


@settings(max_examples=200, deadline=None)
@given(
    served=st.lists(st.tuples(prompts(trees, twins=True), hidden_runs), max_size=4),
    prompt=prompts(st.just("sequential"), twins=True),
    behind=hidden_runs,
    is_served=st.booleans(),
)
def test_a_row_is_found_below_what_it_stands_behind(
    served: list[tuple[TreePrompt, list[Ids | None]]],
    prompt: TreePrompt,
    behind: list[Ids | None],
    is_served: bool,
) -> None:
    model = ServedPrompts()
    for other, hidden in [*served, (prompt, behind)] if is_served else served:
        model.serve(grow(other, cut(hidden, other))[0])
    behind = cut(behind, prompt)
    grown, own = grow(prompt, behind)
    paths = [grown.keys[index] for index in own]
    expected = [i for i, path in enumerate(paths) if path in model.cached]

    table = make_table(prompt, behind)
    root = model.tree.root(None)
    look = look_up(model.tree, root, table)
    match = match_segments(model.tree, root, table)
    assert look.matched == match.matched
    assert sum(match.matched) == len(expected)
    plan = plan_request(model.tree, root, table)
    rows = plan.order[: plan.num_hits].tolist()
    assert sorted(rows) == expected
    slots = [*plan.shared_slots.tolist(), *plan.shifted.slots.tolist()]
    assert slots == [model.cached[paths[i]][0] for i in rows]
    homes = plan.shifted.home.tolist()
    assert homes == [grown.positions[own[i]] for i in rows[plan.num_shared :]]
    held = {path[:stop] for i in rows if (path := paths[i]) for stop in range(1, len(path) + 1)}
    if table.hidden:
        assert plan.num_locked == len(held)
    first = 1 if prompt.system else 0
    for segment, key in table.hidden.items():
        system = tuple(prompt.system)
        ids = tuple(np.frombuffer(key, "<i4").tolist())
        found = [
            stop for stop in range(len(ids) + 1) if stop == 0 or system + ids[:stop] in model.cached
        ]
        has_system = not first or system in model.cached
        assert look.unhidden[segment] == len(ids) - (max(found) if has_system else 0)
    check_tree(model.tree)


def rows(*trees: Ids) -> TreePrompt:
    return TreePrompt([1, 2], [(tree, []) for tree in trees], [99], "tree")


def test_alone_and_behind_another_are_two_nodes() -> None:
    model = ServedPrompts()
    model.serve(rows([5, 6, 7, 8]))  # 5 6 stands before 7 8 in its document
    behind_it, alone = make_table(rows([7, 8]), [[5, 6]]), make_table(rows([7, 8]), [None])
    root = model.tree.root(None)
    assert look_up(model.tree, root, behind_it).matched == [2, 2]
    assert look_up(model.tree, root, alone).matched == [2, 0]
    model.serve(rows([7, 8]))
    own = plan_request(model.tree, root, alone).shared_slots.tolist()
    other = plan_request(model.tree, root, behind_it)
    assert other.num_shared == 2 and other.shifted.slots.tolist()
    assert not set(own[2:]) & set(other.shifted.slots.tolist())


def test_what_a_row_stands_behind_may_be_a_row_too() -> None:
    model = ServedPrompts()
    model.serve(rows([5, 6, 7, 8]))
    prompt = rows([5, 6], [7, 8])
    table = make_table(prompt, [None, [5, 6]])
    plan = plan_request(model.tree, model.tree.root(None), table)
    assert plan.num_hits == 6 and plan.num_locked == 6
    assert plan.num_shared == 6  # just where they stand in the flat prompt
    beginning = make_table(rows([5, 6, 7, 8], [8]), [None, [5]])  # 5 is cut off what was found
    assert look_up(model.tree, model.tree.root(None), beginning).matched == [2, 4, 0]
    plan = plan_request(model.tree, model.tree.root(None), beginning)
    assert plan.matched == [2, 4, 0] and plan.num_hits == 6


def test_the_queue_wants_a_row_below_what_it_stands_behind() -> None:
    model = ServedPrompts()
    ahead = Lookahead(model.tree)
    ahead.enter("a", None, make_table(rows([7, 8]), [[5, 6]]))
    keys = {node.key for node in model.tree.nodes() if node.waiters}
    assert {np.frombuffer(key, "<i4").tolist()[0] for key in keys} == {1, 5, 7}
    ahead.leave("a")
    assert not list(model.tree.nodes())


def test_rows_are_shared_by_requests_where_they_stand_behind_the_same() -> None:
    shared = Sharing()
    first = shared.add("tenant", make_table(rows([7, 8]), [[5, 6]]))
    same = shared.add("tenant", make_table(rows([7, 8]), [[5, 6]]))
    alone = shared.add("tenant", make_table(rows([7, 8]), [None]))
    assert shared.shared[first, same] == 6
    assert shared.shared[first, alone] == 2  # the system
