# SPDX-License-Identifier: Apache-2.0
"""The exact order in which cached KV goes, policy by policy."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from depcache.cache import EVICTION_POLICIES, KVTree, Node, make_policy
from depcache.cache.radix import to_key
from depcache.errors import ConfigError

every_policy = pytest.mark.parametrize("policy", EVICTION_POLICIES)


def make_tree(policy: str, num_leaves: int) -> tuple[KVTree, list[Node]]:
    """Leaves of two tokens below the root; leaf i owns the slots 2 i and 2 i + 1."""
    tree = KVTree(make_policy(policy))
    leaves = [
        tree.insert(
            tree.root(None), to_key(np.array([i, 1000])), np.array([2 * i, 2 * i + 1]), 0
        ).node
        for i in range(num_leaves)
    ]
    return tree, leaves


def use(tree: KVTree, *nodes: Node) -> None:
    """One request that used `nodes`."""
    tree.lock(nodes)
    tree.touch(nodes)
    tree.unlock(nodes)


def drain(tree: KVTree) -> list[int]:
    """Numbers of the leaves in the order in which they go."""
    order = []
    while dropped := tree.tiers.evict(tree, 1):
        assert len(dropped) == 1, "one token is asked for, so one node goes"
        order.append(int(dropped[0][0]) // 2)
    return order


@every_policy
def test_leaves_that_were_never_used_go_in_order_of_insertion(policy: str) -> None:
    tree, _ = make_tree(policy, 5)
    assert drain(tree) == [0, 1, 2, 3, 4]
    assert (tree.num_tokens, tree.num_nodes) == (0, 0)


def test_lru_drops_the_one_whose_last_use_is_longest_ago() -> None:
    tree, leaves = make_tree("lru", 4)
    for i in (2, 0, 3, 1, 2):
        use(tree, leaves[i])
    assert drain(tree) == [0, 3, 1, 2]


def test_lru_looks_at_the_last_use_not_at_the_number_of_uses() -> None:
    tree, leaves = make_tree("lru", 2)
    for _ in range(9):
        use(tree, leaves[0])
    use(tree, leaves[1])
    assert drain(tree) == [0, 1]


def test_lfu_drops_the_one_with_the_fewest_uses_then_the_oldest_entry() -> None:
    tree, leaves = make_tree("lfu", 4)
    for i in (0, 0, 0, 1, 2, 2, 3):
        use(tree, leaves[i])
    assert drain(tree) == [1, 3, 2, 0]


@every_policy
def test_a_locked_leaf_stays_and_goes_when_it_is_unlocked(policy: str) -> None:
    tree, leaves = make_tree(policy, 3)
    tree.lock([leaves[0]])
    assert drain(tree) == [1, 2]
    assert tree.num_locked == 2
    tree.unlock([leaves[0]])
    assert drain(tree) == [0]


@every_policy
def test_an_inner_node_goes_only_after_its_children(policy: str) -> None:
    tree, (parent, other) = make_tree(policy, 2)
    for first in (7, 8):
        tree.insert(parent, to_key(np.array([first])), np.array([2 * first]), 2)
    order = drain(tree)
    assert order.index(0) > max(order.index(7), order.index(8))
    assert sorted(order) == [0, 1, 7, 8]
    assert other.parent is None


@every_policy
def test_both_halves_of_a_split_node_go_the_lower_first(policy: str) -> None:
    tree, (leaf,) = make_tree(policy, 1)
    tree.split(leaf, 1)
    dropped = tree.tiers.evict(tree, 2)
    assert [slots.tolist() for slots in dropped] == [[1], [0]]


def test_both_halves_of_a_split_node_keep_its_uses() -> None:
    tree, (often, seldom, between) = make_tree("lfu", 3)
    for node, num_uses in ((often, 5), (seldom, 3), (between, 5)):
        for _ in range(num_uses):
            use(tree, node)
    upper = tree.split(often, 1)
    use(tree, upper)  # six uses, the lower half has five
    dropped = [int(slots[0]) for num in (2, 1, 9) for slots in tree.tiers.evict(tree, num)]
    assert dropped == [2, 1, 4, 0]


@every_policy
def test_nothing_is_dropped_when_nothing_is_asked_for(policy: str) -> None:
    tree, _ = make_tree(policy, 2)
    assert tree.tiers.evict(tree, 0) == []
    assert tree.tiers.evict(tree, -3) == []
    assert tree.num_tokens == 4


@every_policy
def test_whole_nodes_go_until_enough_is_free(policy: str) -> None:
    tree, _ = make_tree(policy, 4)
    assert [slots.tolist() for slots in tree.tiers.evict(tree, 3)] == [[0, 1], [2, 3]]
    assert tree.counters.evicted == 4
    assert tree.counters.evicted_nodes == 2


@every_policy
def test_many_uses_of_a_few_nodes_take_no_more_memory(policy: str) -> None:
    """Entries of the queue are voided lazily; the void ones must be cleared away in time."""
    tree, leaves = make_tree(policy, 8)
    tracemalloc.start()
    for i in range(20_000):
        use(tree, leaves[i % 8])
    grown_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown_bytes < 500_000
    assert sorted(drain(tree)) == list(range(8))


def test_an_unknown_policy_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"'mru'.*lru.*lfu"):
        make_policy("mru")
