# SPDX-License-Identifier: Apache-2.0
"""What the KV tree promises, one small example each; `test_tree_stateful` mixes them all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from depcache.cache import Insertion, KVTree, Node
from depcache.cache.invariants import check_tree
from depcache.cache.radix import common_prefix_tokens, to_key, to_tokens


def key(*tokens: int) -> bytes:
    return to_key(np.array(tokens, np.int64))


def slots(start: int, num_slots: int) -> np.ndarray:
    return np.arange(start, start + num_slots)


def insert(tree: KVTree, *tokens: int, start: int = 100, home: int = 0) -> Insertion:
    """Insert below the root of namespace None, offering slots `start`, `start` + 1, ..."""
    offered = slots(start, len(tokens))
    return tree.insert(tree.root(None), key(*tokens), offered, home)


def test_what_was_inserted_is_found_with_its_slots_and_homes() -> None:
    tree = KVTree()
    added = insert(tree, 5, 6, 7, start=40, home=9)
    assert (added.num_present, added.num_added) == (0, 3)
    path, matched = tree.walk(tree.root(None), key(5, 6, 7, 8))
    assert path == [added.node]
    assert matched == 3
    assert added.node.slots.tolist() == [40, 41, 42]
    assert added.node.home == 9
    check_tree(tree)


def test_walk_stops_at_the_first_token_that_differs_and_splits_there() -> None:
    tree = KVTree()
    whole = insert(tree, 1, 2, 3, 4, start=10, home=5).node
    path, matched = tree.walk(tree.root(None), key(1, 2, 9))
    assert matched == 2
    assert [to_tokens(node.key).tolist() for node in path] == [[1, 2]]
    (upper,) = path
    assert (upper.slots.tolist(), upper.home) == ([10, 11], 5)
    assert (whole.slots.tolist(), whole.home) == ([12, 13], 7)
    assert whole.parent is upper
    check_tree(tree)


def test_walk_of_nothing_and_of_an_unknown_token_finds_nothing() -> None:
    tree = KVTree()
    insert(tree, 1, 2)
    assert tree.walk(tree.root(None), b"") == ([], 0)
    assert tree.walk(tree.root(None), key(7)) == ([], 0)
    assert tree.walk(tree.root("other"), key(1, 2)) == ([], 0)


def test_walk_changes_neither_the_version_nor_the_totals() -> None:
    tree = KVTree()
    insert(tree, 1, 2, 3)
    before = tree.version, tree.num_tokens, tree.num_evictable, tree.num_locked
    tree.walk(tree.root(None), key(1, 9))
    assert (tree.version, tree.num_tokens, tree.num_evictable, tree.num_locked) == before
    assert tree.num_nodes == 2


def test_insert_keeps_what_is_present_and_takes_only_the_tail() -> None:
    tree = KVTree()
    insert(tree, 1, 2, 3, start=10)
    again = insert(tree, 1, 2, 4, 5, start=20, home=30)
    assert (again.num_present, again.num_added) == (2, 2)
    assert again.present_slots.tolist() == [10, 11]
    assert again.node.slots.tolist() == [22, 23]
    assert again.node.home == 32
    check_tree(tree)


def test_insert_of_what_is_all_present_adds_nothing_and_keeps_the_version() -> None:
    tree = KVTree()
    first = insert(tree, 1, 2, 3, start=10)
    version = tree.version
    again = insert(tree, 1, 2, 3, start=20)
    assert (again.num_present, again.num_added) == (3, 0)
    assert again.node is first.node
    assert tree.version == version


def test_insert_of_an_empty_run_ends_at_the_node_it_started_from() -> None:
    tree = KVTree()
    node = insert(tree, 1, 2).node
    nothing = tree.insert(node, b"", np.empty(0, np.int64), 2)
    assert nothing.node is node
    assert (nothing.num_present, nothing.num_added) == (0, 0)


def test_the_tree_keeps_no_view_of_the_offered_slots() -> None:
    """The caller's row is written again when the request decodes or is retracted."""
    tree = KVTree()
    offered = slots(10, 3)
    node = tree.insert(tree.root(None), key(1, 2, 3), offered, 0).node
    offered[:] = -1
    assert node.slots.tolist() == [10, 11, 12]


def test_namespaces_share_nothing() -> None:
    tree = KVTree()
    tree.insert(tree.root("a"), key(1, 2), slots(10, 2), 0)
    added = tree.insert(tree.root("b"), key(1, 2), slots(20, 2), 0)
    assert added.num_present == 0
    assert tree.num_tokens == 4
    check_tree(tree)


def test_ids_up_to_the_largest_int32_are_keys() -> None:
    tree = KVTree()
    insert(tree, 0, 2**31 - 1, 2**31 - 2)
    assert tree.walk(tree.root(None), key(0, 2**31 - 1, 2**31 - 2))[1] == 3


@pytest.mark.parametrize("num_tokens", [-1, 0, 3, 4])
def test_split_refuses_to_make_an_empty_half(num_tokens: int) -> None:
    tree = KVTree()
    node = insert(tree, 1, 2, 3).node
    with pytest.raises(ValueError, match="cannot split"):
        tree.split(node, num_tokens)
    check_tree(tree)


def test_split_of_the_root_is_refused() -> None:
    tree = KVTree()
    with pytest.raises(ValueError, match="cannot split"):
        tree.split(tree.root(None), 1)


def test_a_handle_still_holds_the_whole_run_after_a_split() -> None:
    tree = KVTree()
    node = insert(tree, 1, 2, 3, 4).node
    tree.lock([node])
    upper = tree.split(node, 1)
    assert (tree.num_locked, tree.num_evictable) == (4, 0)
    assert tree.tiers.evict(tree, 10) == []
    tree.unlock([node])
    assert (upper.locks, node.locks) == (0, 0)
    assert tree.num_evictable == 4
    check_tree(tree)


def test_a_lock_holds_every_ancestor_and_frees_it_with_the_last_unlock() -> None:
    tree = KVTree()
    parent = insert(tree, 1, 2).node
    left = tree.insert(parent, key(3), slots(10, 1), 2).node
    right = tree.insert(parent, key(4), slots(11, 1), 2).node
    tree.lock([left, right])
    tree.lock([left])
    assert tree.num_locked == 4
    tree.unlock([left, right])
    assert (tree.num_locked, tree.num_evictable) == (3, 1)
    check_tree(tree)
    tree.unlock([left])
    assert tree.num_locked == 0
    check_tree(tree)


def test_unlock_without_a_lock_is_an_error() -> None:
    tree = KVTree()
    node = insert(tree, 1).node
    with pytest.raises(RuntimeError, match="not locked"):
        tree.unlock([node])


def test_reset_forgets_everything_and_changes_the_version() -> None:
    tree = KVTree()
    insert(tree, 1, 2, 3)
    version = tree.version
    tree.reset()
    assert (tree.num_tokens, tree.num_nodes, list(tree.nodes())) == (0, 0, [])
    assert tree.version != version
    assert tree.tiers.evict(tree, 1) == []
    check_tree(tree)


def test_every_change_of_the_cached_tokens_changes_the_version() -> None:
    tree = KVTree()
    versions = [tree.version]
    insert(tree, 1, 2, 3)
    versions.append(tree.version)
    tree.tiers.evict(tree, 1)
    versions.append(tree.version)
    assert len(set(versions)) == 3


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [((), (), 0), ((1,), (), 0), ((1, 2), (1, 2), 2), ((1, 2, 3), (1, 2), 2), ((1, 2), (3, 2), 0)],
)
def test_common_prefix_counts_equal_leading_tokens(
    left: tuple[int, ...], right: tuple[int, ...], expected: int
) -> None:
    assert common_prefix_tokens(key(*left), key(*right)) == expected
    assert common_prefix_tokens(key(*right), key(*left)) == expected


def _damage_total(tree: KVTree, node: Node) -> None:
    tree.num_evictable += 1


def _damage_count(tree: KVTree, node: Node) -> None:
    tree.num_nodes -= 1


def _damage_slots(tree: KVTree, node: Node) -> None:
    node.slots = np.concatenate((node.slots[:-1], node.slots[:1]))


def _damage_length(tree: KVTree, node: Node) -> None:
    node.slots = node.slots[:-1]


def _damage_key(tree: KVTree, node: Node) -> None:
    node.key += b"\0\0\0\0"


def _damage_edge(tree: KVTree, node: Node) -> None:
    assert node.parent is not None
    node.parent.children[77] = node.parent.children.pop(node.first_token)


def _damage_parent(tree: KVTree, node: Node) -> None:
    node.parent = Node(b"", np.empty(0, np.int64), 0, None)


def _damage_queue(tree: KVTree, node: Node) -> None:
    tree.victims.withdraw(node)


def _damage_locks(tree: KVTree, node: Node) -> None:
    tree.lock([node])
    assert node.parent is not None
    node.parent.locks = 0
    tree.num_locked -= node.parent.num_tokens
    tree.num_evictable += node.parent.num_tokens


@pytest.mark.parametrize(
    "damage",
    [
        _damage_total,
        _damage_count,
        _damage_slots,
        _damage_length,
        _damage_key,
        _damage_edge,
        _damage_parent,
        _damage_queue,
        _damage_locks,
    ],
)
def test_check_finds_damage(damage: Callable[[KVTree, Node], None]) -> None:
    """`check` is the oracle of other tests, so it must not pass on a broken tree."""
    tree = KVTree()
    parent = insert(tree, 1, 2, start=10).node
    leaf = tree.insert(parent, key(3, 4, 5), slots(20, 3), 2).node
    check_tree(tree)
    damage(tree, leaf)
    with pytest.raises(RuntimeError):
        check_tree(tree)
