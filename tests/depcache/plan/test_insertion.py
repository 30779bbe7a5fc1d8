# SPDX-License-Identifier: Apache-2.0
"""Rows on their way into the tree: in pieces as at once, beside others, and never with a gap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.cache import KVTree
from depcache.cache.invariants import check_tree
from depcache.cache.radix import to_key
from depcache.plan import ContextInsertion, RowKind, RowTable, SegmentTable, plan_request
from depcache.prompt.forest import Forest
from depcache.prompt.layout import read_layout
from tests.depcache.plan.test_request import make_table
from tests.helpers.prompts import TreePrompt
from tests.helpers.strategies import prompts

NAMESPACE = "ns"


class Request:
    """One request of a server without a device: its plan, its row of slots, its insertion."""

    def __init__(
        self, tree: KVTree, table: SegmentTable, first_slot: int, *, is_exact: bool = True
    ) -> None:
        self.tree = tree
        self.table = table
        self.plan = plan_request(tree, tree.root(NAMESPACE), table, allow_shift=not is_exact)
        tree.lock(self.plan.nodes)
        self.nodes = list(self.plan.nodes)
        self.slots = np.arange(first_slot, first_slot + table.num_tokens)
        self.slots[: self.plan.num_shared] = self.plan.shared_slots
        self.insertion = ContextInsertion(
            tree, NAMESPACE, table, self.plan, num_computed=1, is_exact=is_exact
        )
        self.freed: list[int] = []

    def compute(self, num_rows: int) -> None:
        offer = self.insertion.offer(num_rows, self.slots[:num_rows].copy())
        self.nodes += offer.taken
        for duplicate in offer.duplicates:
            stop = duplicate.row + len(duplicate.own)
            assert self.slots[duplicate.row : stop].tolist() == duplicate.own.tolist()
            self.slots[duplicate.row : stop] = duplicate.cached
            self.freed += duplicate.own.tolist()

    def finish(self) -> None:
        self.tree.unlock(self.nodes)


def contents(tree: KVTree) -> dict[tuple[int, ...], int]:
    """Path of each cached token -> its position."""
    found: dict[tuple[int, ...], int] = {}
    for node in tree.nodes():
        path: list[int] = []
        above = node.parent
        while above is not None:
            path[:0] = np.frombuffer(above.key, "<i4").tolist()
            above = above.parent
        for number, token in enumerate(np.frombuffer(node.key, "<i4").tolist()):
            path.append(token)
            found[tuple(path)] = node.home + number
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(prompts(st.just("tree"), twins=True), min_size=1, max_size=4), st.data())
def test_a_prompt_in_pieces_leaves_what_it_leaves_at_once(
    given_prompts: list[TreePrompt], data: st.DataObject
) -> None:
    at_once, in_pieces = KVTree(), KVTree()
    first_slot = 0
    for prompt in given_prompts:
        table = make_table(prompt)
        whole, cut = (Request(tree, table, first_slot) for tree in (at_once, in_pieces))
        first_slot += table.num_tokens
        stops = st.lists(st.integers(whole.plan.num_hits, table.num_tokens), max_size=5)
        for stop in [*sorted(data.draw(stops)), table.num_tokens]:
            cut.compute(stop)
            check_tree(in_pieces)
            # What is owned is what the tree has: no row of the task, none behind `stop`.
            assert not cut.insertion.owned[min(stop, table.task_start) :].any()
        whole.compute(table.num_tokens)
        assert whole.insertion.next_row is cut.insertion.next_row is None
        assert whole.insertion.owned.tolist() == cut.insertion.owned.tolist()
        assert int(whole.insertion.owned.sum()) == table.task_start
        assert contents(at_once) == contents(in_pieces)
        for request in (whole, cut):
            request.finish()
            assert request.tree.num_locked == 0


@settings(max_examples=100, deadline=None)
@given(prompts(st.just("tree"), twins=True), prompts(st.just("tree")), st.data())
def test_two_at_the_same_time_keep_one_copy(
    one: TreePrompt, other: TreePrompt, data: st.DataObject
) -> None:
    tree = KVTree()
    requests = [
        Request(tree, make_table(prompt), 10_000 * i) for i, prompt in enumerate((one, other))
    ]
    stops = [data.draw(st.integers(0, request.table.num_tokens)) for request in requests]
    for request, stop in zip(requests, stops, strict=True):
        request.compute(stop)
    for request in requests:
        request.compute(request.table.num_tokens)
        check_tree(tree)
    held = sorted(slot for node in tree.nodes() for slot in node.slots.tolist())
    freed = sorted(slot for request in requests for slot in request.freed)
    assert len(set(held)) == len(held)
    assert not set(held) & set(freed)
    for request in requests:
        owned = request.slots[request.insertion.owned]
        assert set(owned.tolist()) <= set(held)
        request.finish()
    num_offered = sum(request.table.task_start for request in requests)
    assert len(held) + len(freed) == num_offered


def chain(tokens: list[int], *lens: int) -> SegmentTable:
    """Segments that hang below each other, then one task token."""
    prompt = np.array([*tokens, 99], np.int64)
    forest = Forest.make(len(prompt), 0, list(lens), [i - 1 for i in range(len(lens))])
    return SegmentTable.make(prompt, forest, read_layout("tree"))


def test_what_hangs_below_a_row_that_is_not_stored_stays_with_the_request() -> None:
    table = chain([1, 2, 3, 4, 5, 6], 4, 2)
    tree = KVTree()
    request = Request(tree, table, 0)
    request.plan.rows.storable[2] = False  # in the middle of the first segment
    insertion = ContextInsertion(tree, NAMESPACE, table, request.plan, num_computed=1)
    offer = insertion.offer(7, request.slots)
    assert [np.frombuffer(node.key, "<i4").tolist() for node in offer.taken] == [[1, 2]]
    assert insertion.owned.tolist() == [True, True, False, False, False, False, False]


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("home", [0, 7])
def test_kv_of_another_request_is_a_duplicate_only_where_it_is_the_same_kv(
    is_exact: bool, home: int
) -> None:
    """At the same position too: in the other layouts what is above may have been moved."""
    tree = KVTree()
    table = chain([1, 2, 3], 3)
    request = Request(tree, table, 100)
    tree.insert(tree.root(NAMESPACE), to_key(np.array([1, 2, 3])), np.arange(3), home)
    insertion = ContextInsertion(
        tree, NAMESPACE, table, request.plan, num_computed=1, is_exact=is_exact
    )
    offer = insertion.offer(4, request.slots)
    assert len(offer.duplicates) == is_exact
    assert insertion.owned.tolist() == [is_exact] * 3 + [False]
    assert tree.num_tokens == 3


def test_loaded_rows_are_the_trees_once_they_have_slots() -> None:
    table = chain([1, 2, 3, 4], 4)
    tree = KVTree()
    plan = Request(tree, table, 0).plan
    plan.rows.kind[:2] = RowKind.LOADED
    plan.rows.storable[:2] = False
    insertion = ContextInsertion(tree, NAMESPACE, table, plan, num_computed=1)
    assert not insertion.owned.any()
    insertion.own_loaded()
    assert insertion.owned.tolist() == [True, True, False, False, False]


def test_rows_stand_in_the_order_of_their_kinds() -> None:
    rows = RowTable.make(
        np.array([4, 5]), np.array([0]), np.array([7]), num_context=9, num_tokens=11
    )
    assert rows.index.tolist() == [4, 5, 0, 7, 1, 2, 3, 6, 8, 9, 10]
    assert [RowKind(kind).name for kind in rows.kind] == (
        ["SHARED"] * 2 + ["SHIFTED", "LOADED"] + ["MISSED"] * 5 + ["TASK"] * 2
    )
    assert np.bincount(rows.kind).tolist() == [2, 1, 1, 5, 0, 2]
    assert np.flatnonzero(rows.storable).tolist() == [4, 5, 6, 7, 8]


def test_runs_are_cut_at_segments_and_where_tokens_do_not_follow_on() -> None:
    tokens = np.arange(9)
    forest = Forest.make(9, 2, [3, 3], [-1, -1])
    table = SegmentTable.make(tokens, forest, read_layout("tree"))
    rows = RowTable.make(
        np.array([6]), np.empty(0, int), np.empty(0, int), num_context=8, num_tokens=9
    )
    runs = rows.runs(table)
    # Missed are 0 1 | 2 3 4 | 5, and 7 behind the hit 6; row 0 is the hit.
    assert runs.segments == [0, 1, 2, 2]
    assert runs.rows == [1, 3, 6, 7]
    assert runs.indices == [0, 2, 5, 7]
    assert runs.sizes == [2, 3, 1, 1]
    assert len(RowTable.make(*[np.empty(0, int)] * 3, num_context=0, num_tokens=3).runs(table)) == 0
