# SPDX-License-Identifier: Apache-2.0
"""Waiting requests on the nodes they want, cached or not, and nothing left when they are gone."""

from __future__ import annotations

import numpy as np

from depcache.cache import KVTree, make_policy
from depcache.cache.invariants import check_tree
from depcache.plan import Lookahead, SegmentTable, plan_request
from depcache.prompt.forest import Forest
from tests.helpers.insertion import cache_context


def make_table(system: list[int], *trees: list[int]) -> SegmentTable:
    """A system, one segment a tree, and a task of one token."""
    tokens = np.array([*system, *(token for tree in trees for token in tree), 999])
    forest = Forest.make(
        len(tokens), len(system), np.array([len(t) for t in trees]), np.full(len(trees), -1)
    )
    return SegmentTable.make(tokens, forest, "tree")


def wanted_by(tree: KVTree, waiter: object) -> int:
    """Tokens that `waiter` is written on."""
    return sum(node.num_tokens for node in tree.nodes() if node.waiters and waiter in node.waiters)


def test_a_waiting_request_wants_all_of_its_system_and_context() -> None:
    tree = KVTree(make_policy("lacr"))
    lookahead = Lookahead(tree)
    table = make_table([1, 2], [5, 6, 7], [8, 9])
    lookahead.enter("a", "ns", table)
    assert wanted_by(tree, "a") == table.task_start == 7
    assert (tree.num_tokens, tree.num_resident) == (0, 0)
    check_tree(tree)


def test_a_wanted_node_is_no_hit_before_its_kv_is_computed() -> None:
    tree = KVTree(make_policy("lacr"))
    table = make_table([1, 2], [5, 6, 7])
    Lookahead(tree).enter("a", "ns", table)
    assert plan_request(tree, tree.root("ns"), table).num_hits == 0
    cache_context(tree, "ns", table)
    assert plan_request(tree, tree.root("ns"), table).num_missed == 0
    assert wanted_by(tree, "a") == 5
    check_tree(tree)


def test_requests_that_share_a_prefix_split_what_is_wanted() -> None:
    tree = KVTree(make_policy("lacr"))
    lookahead = Lookahead(tree)
    lookahead.enter("a", "ns", make_table([1, 2], [5, 6, 7]))
    lookahead.enter("b", "ns", make_table([1, 2], [5, 6, 8]))
    assert (wanted_by(tree, "a"), wanted_by(tree, "b")) == (5, 5)
    both = [node for node in tree.nodes() if node.waiters and len(node.waiters) == 2]
    assert sum(node.num_tokens for node in both) == 4
    check_tree(tree)


def test_nothing_is_left_when_the_last_waiter_left() -> None:
    tree = KVTree(make_policy("lacr"))
    lookahead = Lookahead(tree)
    lookahead.enter("a", "ns", make_table([1, 2], [5, 6, 7], [8]))
    lookahead.enter("b", "ns", make_table([1, 2], [5, 9]))
    lookahead.leave("a")
    assert wanted_by(tree, "b") == 4
    assert sum(node.num_tokens for node in tree.nodes()) == 4
    lookahead.leave("b")
    assert list(tree.nodes()) == []
    assert (tree.num_nodes, len(lookahead), tree.rank) == (0, 0, {})
    check_tree(tree)


def test_what_is_cached_stays_when_its_waiters_leave() -> None:
    tree = KVTree(make_policy("lacr"))
    lookahead = Lookahead(tree)
    table = make_table([1, 2], [5, 6, 7])
    lookahead.enter("a", "ns", table)
    cache_context(tree, "ns", table)
    lookahead.leave("a")
    assert tree.num_tokens == 5
    assert all(node.waiters is None for node in tree.nodes())
    check_tree(tree)


def test_an_evicted_node_that_is_wanted_is_known_until_nobody_wants_it() -> None:
    tree = KVTree(make_policy("lacr"))
    lookahead = Lookahead(tree)
    table = make_table([], [5, 6, 7])
    cache_context(tree, "ns", table)
    tree.lock(list(tree.nodes()))
    tree.unlock(list(tree.nodes()))
    lookahead.enter("a", "ns", table)
    tree.tiers.evict(tree, 10)
    assert tree.num_tokens == 0
    assert wanted_by(tree, "a") == 3
    lookahead.leave("a")
    assert tree.num_nodes == 0


def test_other_namespaces_are_other_nodes() -> None:
    tree = KVTree(make_policy("lacr"))
    lookahead = Lookahead(tree)
    table = make_table([1], [5, 6])
    lookahead.enter("a", "ns", table)
    lookahead.enter("b", "other", table)
    assert all(len(node.waiters or ()) == 1 for node in tree.nodes())


def test_ranks_follow_the_order_given_and_the_arrival_of_the_rest() -> None:
    tree = KVTree(make_policy("lacr"))
    lookahead = Lookahead(tree)
    for name in "abcd":
        lookahead.enter(name, "ns", make_table([], [ord(name)]))
    assert tree.rank == {"a": 0, "b": 1, "c": 2, "d": 3}
    lookahead.set_order(["c", "unknown", "a"])
    assert tree.rank == {"c": 0, "a": 1, "b": 2, "d": 3}
    lookahead.leave("a")
    lookahead.leave("never entered")
    assert sorted(tree.rank) == ["b", "c", "d"]


def test_entering_twice_changes_nothing() -> None:
    tree = KVTree(make_policy("lacr"))
    lookahead = Lookahead(tree)
    table = make_table([], [5, 6])
    lookahead.enter("a", "ns", table)
    lookahead.enter("b", "ns", table)
    lookahead.enter("a", "ns", make_table([], [7, 8]))
    assert tree.rank == {"a": 0, "b": 1}
    assert wanted_by(tree, "a") == 2
