# SPDX-License-Identifier: Apache-2.0
"""Copies that somebody else keeps: used like others, and never given up to make room."""

from __future__ import annotations

import numpy as np
import pytest

from depcache.cache import KVTree, Node, Tier, TierCopies
from depcache.cache.invariants import check_tree
from depcache.cache.radix import to_key


class Path:
    """A way of three nodes, the middle one with a copy that is borrowed."""

    def __init__(self) -> None:
        self.tree = KVTree()
        self.copies = TierCopies(self.tree, "disk", cut=lambda copy, at: (copy[:at], copy[at:]))
        self.tree.tiers.append(Tier(self.copies))
        root = self.tree.root("everyone")
        self.nodes: list[Node] = []
        above: Node = root
        for number in range(3):
            key = to_key(np.array([10 * number + 1, 10 * number + 2]))
            above = self.tree.grow(above, key, 2 * number)[-1]
            self.copies.add(above, "ab", is_borrowed=number == 1)
            self.nodes.append(above)

    def evict_all(self) -> list[Node]:
        evicted: list[Node] = []
        while (found := self.copies.evict_one()) is not None:
            evicted.append(found[0])
            self.tree.prune(found[0])
            check_tree(self.tree)
        return evicted


@pytest.fixture
def path() -> Path:
    path = Path()
    check_tree(path.tree)
    return path


def test_it_is_no_victim_and_holds_nothing_back(path: Path) -> None:
    first, middle, last = path.nodes
    assert set(path.evict_all()) == {first, last}
    assert middle.copies == {"disk": "ab"}
    assert path.copies.borrowed() == [middle] and path.copies.num_nodes == 1


def test_when_it_has_become_ours_it_leaves_before_what_leads_to_it(path: Path) -> None:
    first, middle, last = path.nodes
    path.copies.own(middle)
    check_tree(path.tree)
    assert path.evict_all() == [last, middle, first]
    assert path.copies.num_nodes == path.copies.num_borrowed == path.tree.num_nodes == 0


def test_both_parts_of_a_node_that_is_split_are_borrowed(path: Path) -> None:
    _, middle, _ = path.nodes
    upper = path.tree.split(middle, 1)
    check_tree(path.tree)
    assert set(path.copies.borrowed()) == {upper, middle}
    assert (upper.copies["disk"], middle.copies["disk"]) == ("a", "b")
    path.copies.own(middle)
    path.copies.own(upper)
    check_tree(path.tree)
    assert len(path.evict_all()) == 4


def test_a_pinned_one_is_not_named(path: Path) -> None:
    _, middle, _ = path.nodes
    path.copies.pin([middle])
    assert path.copies.borrowed() == [] and path.copies.num_borrowed == 1
    path.copies.unpin([middle])
    assert path.copies.borrowed() == [middle]
    assert path.copies.drop(middle) == "ab"
    assert path.copies.num_borrowed == 0
    check_tree(path.tree)
