# SPDX-License-Identifier: Apache-2.0
"""A tail and the context that it stands behind: who leaves first, and what goes with what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from depcache.cache import EVICTION_POLICIES, KVTree, Node, Root, TierCopies, make_policy
from depcache.cache.invariants import check_tree
from depcache.cache.node import TAIL_MARK
from depcache.cache.radix import to_key
from tests.helpers.keeper import Keeper

BEHIND = TAIL_MARK + b"a context"


class Grown:
    """A tree with slots counted up, and what has been evicted in order."""

    def __init__(self, policy: str = "lru") -> None:
        self.tree = KVTree(make_policy(policy))
        self.num_slots = 0

    def insert(self, above: Node, *tokens: int) -> Node:
        slots = self.num_slots + np.arange(len(tokens))
        self.num_slots += len(tokens)
        inserted = self.tree.insert(above, to_key(np.array(tokens)), slots, home=0)
        check_tree(self.tree)
        return inserted.node

    def context(self) -> list[Node]:
        """Two facts below one system; the nodes that they end in."""
        system = self.insert(self.tree.root("ns"), 1, 2)
        return [self.insert(system, 3, 4, 5), self.insert(system, 6, 7)]

    def tail(self, context: list[Node], *tokens: int, behind: bytes = BEHIND) -> Node:
        root = self.tree.root("ns", behind)
        self.tree.hang(root, context)
        return self.insert(root, *tokens)

    def evict_one(self) -> list[int]:
        """The first token of each node that leaves for one token's room."""
        gone = [int(np.frombuffer(node.key, "<i4")[0]) for node, _ in self.victims(1)]
        check_tree(self.tree)
        return gone

    def victims(self, num_tokens: int) -> list[tuple[Node, np.ndarray]]:
        victims = self.tree.evict(num_tokens)
        for node, _ in victims:
            self.tree.prune(node)
        return victims


def keep_all(tree: KVTree) -> TierCopies:
    """A tier below the device that keeps whatever leaves it."""
    copies = TierCopies(tree, "host")

    def keep(leaving: list[tuple[Node, Any]]) -> None:
        for node, slots in leaving:
            copies.add(node, slots)

    tree.tiers.append(Keeper(copies, keep))
    return copies


@pytest.mark.parametrize("policy", EVICTION_POLICIES)
def test_a_tail_leaves_before_its_context_whatever_the_policy(policy: str) -> None:
    if policy == "belady":
        pytest.skip("wants to know the future")
    grown = Grown(policy)
    context = grown.context()
    lower = grown.tail(context, 20, 21)
    grown.insert(lower, 30)
    for _ in range(5):  # by every measure but the order the tail is worth more
        for each in (lower, *lower.children.values()):
            grown.tree.lock([each])
            grown.tree.touch([each])
            grown.tree.unlock([each])
    assert [grown.evict_one() for _ in range(2)] == [[30], [20]]
    assert sorted(grown.evict_one() + grown.evict_one()) == [3, 6]
    assert grown.evict_one() == [1]
    assert (grown.tree.num_tokens, grown.tree.roots()) == (0, [])


def test_another_tree_may_go_while_a_tail_holds_its_context() -> None:
    grown = Grown()
    context = grown.context()
    grown.tail(context, 20, 21)
    other = grown.insert(grown.tree.root("ns"), 50)
    tail = grown.tree.root("ns", BEHIND).children[20]
    grown.tree.lock([tail])
    assert grown.evict_one() == [50]
    assert other.parent is None
    assert grown.tree.evict(100) == []  # the rest is below what is locked
    grown.tree.unlock([tail])
    check_tree(grown.tree)
    assert grown.tree.num_evictable == 9


def test_a_context_stays_for_the_last_of_several_tails() -> None:
    grown = Grown()
    context = grown.context()
    for number in range(3):
        grown.tail(context, 20 + number, behind=BEHIND + bytes([number]))
    assert [grown.evict_one() for _ in range(3)] == [[20], [21], [22]]
    assert all(not end.tails for end in context)
    assert sorted(grown.evict_one() + grown.evict_one()) == [3, 6]


def test_a_context_that_is_split_keeps_its_tail() -> None:
    grown = Grown()
    context = grown.context()
    tail = grown.tail(context, 20)
    grown.insert(context[0].parent or tail, 3, 9)  # cuts [3, 4, 5] after its first token
    check_tree(grown.tree)
    assert [node.num_tokens for node in context] == [2, 2]
    # Only then may what the tail stood behind leave, its old end first.
    assert [grown.evict_one(), grown.evict_one()] == [[20], [4]]


def test_forgetting_part_of_a_context_forgets_its_tails_in_every_tier() -> None:
    grown = Grown()
    copies = keep_all(grown.tree)
    context = grown.context()
    tail = grown.tail(context, 20, 21)
    lower = grown.insert(tail, 30)
    grown.tree.tiers.evict(grown.tree, 1)
    assert lower.slots is None
    assert lower.copies
    freed, num_kept = grown.tree.forget(context[0])
    assert (sum(map(len, freed)), num_kept) == (5, 0)
    check_tree(grown.tree)
    assert [root.behind for root in grown.tree.roots()] == [b""]
    assert not context[1].tails
    assert (grown.tree.num_tokens, copies.num_tokens) == (4, 0)


def test_what_is_locked_of_a_tail_stays_when_its_context_is_forgotten() -> None:
    grown = Grown()
    context = grown.context()
    tail = grown.tail(context, 20, 21)
    lower = grown.insert(tail, 30)
    grown.tree.lock([*context, tail])
    freed, num_kept = grown.tree.forget(context[0])
    assert (sum(map(len, freed)), num_kept) == (1, 5)
    assert lower.parent is None
    grown.tree.unlock([*context, tail])
    check_tree(grown.tree)
    assert grown.tree.num_evictable == grown.tree.num_tokens == 9


def test_a_root_hangs_anew_where_its_context_was_computed_anew() -> None:
    grown = Grown()
    copies = keep_all(grown.tree)
    context = grown.context()
    tail = grown.tail(context, 20)
    grown.tree.tiers.evict(grown.tree, 8)
    assert tail.slots is None
    assert tail.copies
    for end in context:
        copies.drop(end)
        grown.tree.prune(end)
    again = grown.context()
    root = tail.parent
    assert isinstance(root, Root)
    grown.tree.hang(root, again)
    grown.tree.make_resident(tail, np.array([99]))
    grown.tree.offer(tail)
    check_tree(grown.tree)
    assert root.context == tuple(again)
    assert grown.evict_one() == [20]
