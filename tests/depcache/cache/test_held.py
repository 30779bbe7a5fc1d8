# SPDX-License-Identifier: Apache-2.0
"""What is held of each root, against a count over the whole tree."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import pytest

from depcache.cache import KVTree
from depcache.cache.held import MAX_NODES, MAX_SYSTEMS, HeldRoots
from depcache.cache.node import TAIL_MARK
from depcache.cache.radix import TOKEN_BYTES, to_key

SYSTEM = (1, 2, 3)
ADA, BOB, BEN = (10, 11), (20,), (20, 21, 22)
NAMESPACE = "tenant"


def key(tokens: Iterable[int]) -> bytes:
    return to_key(np.array(list(tokens), np.int64))


class Cache:
    """A tree, what is held of its roots, and a count that looks at everything."""

    def __init__(self, **options: int) -> None:
        self.tree = KVTree()
        self.held = HeldRoots(self.tree, **options)
        self.tree.watcher = self.held
        self.next_slot = 0

    def put(
        self, *rows: tuple[int, ...], namespace: str = NAMESPACE, system: tuple[int, ...] = SYSTEM
    ) -> None:
        for row in rows:
            tokens = (*system, *row)
            slots = np.arange(self.next_slot, self.next_slot + len(tokens))
            self.next_slot += len(tokens)
            self.tree.insert(self.tree.root(namespace), key(tokens), slots, 0)

    def note(
        self, *roots: tuple[int, ...], namespace: str = NAMESPACE, system: tuple[int, ...] = SYSTEM
    ) -> None:
        self.held.note_request(namespace, key(system), [(name(root), key(root)) for root in roots])

    def evict(self, num_tokens: int) -> None:
        for node, _ in self.tree.evict(num_tokens):
            self.tree.prune(node)

    def count(self, root: tuple[int, ...], namespace: str = NAMESPACE) -> int:
        """Resident tokens of and below a root, from the paths of all nodes."""
        wanted = key((*SYSTEM, *root))
        paths = {
            self.tree.path_key(node)[: stop * TOKEN_BYTES]
            for node in self.tree.nodes()
            if node.slots is not None and _namespace(node) == namespace
            for stop in range(1, len(self.tree.path_key(node)) // TOKEN_BYTES + 1)
        }
        below = {path for path in paths if path.startswith(wanted)}
        on_the_way = {
            wanted[:stop]
            for stop in range(len(key(SYSTEM)) + TOKEN_BYTES, len(wanted), TOKEN_BYTES)
        }
        return len(below) + len(on_the_way & paths) if wanted in paths else 0


def _namespace(node: object) -> object:
    while (parent := getattr(node, "parent", None)) is not None:
        node = parent
    return getattr(node, "namespace", None)


def name(root: tuple[int, ...]) -> str:
    return "-".join(map(str, root))


def test_what_is_cached_is_told_once_and_what_is_evicted_too() -> None:
    cache = Cache()
    cache.put((*ADA, 5), (*ADA, 6, 7), BOB)
    cache.note(ADA, BOB)
    assert cache.held.take_changes() == {name(ADA): 5, name(BOB): 1}
    assert cache.held.take_changes() == {}
    assert cache.held.held() == {name(ADA): 5, name(BOB): 1}
    cache.evict(100)
    assert cache.held.take_changes() == {name(ADA): 0, name(BOB): 0}
    assert len(cache.held) == 0 and cache.held.held() == {}
    assert not cache.held._buckets and not cache.held._systems


def test_a_root_that_begins_another_holds_it_too() -> None:
    cache = Cache()
    cache.put((*BEN, 9))
    cache.note(BOB, BEN)
    # They lie in one node.
    assert cache.held.take_changes() == {name(BOB): 4, name(BEN): 4}


def test_what_was_never_cached_is_told_to_nobody() -> None:
    cache = Cache()
    cache.note(ADA, ())
    assert cache.held.take_changes() == {} and len(cache.held) == 0


def test_a_part_of_a_root_is_nothing() -> None:
    cache = Cache()
    cache.put(BEN[:2])
    cache.note(BEN)
    assert cache.held.take_changes() == {}


def test_of_a_root_with_very_many_nodes_not_all_are_counted() -> None:
    cache = Cache()
    rows = [(*ADA, 100 + i) for i in range(MAX_NODES + 1000)]
    cache.put(*rows)
    cache.note(ADA)
    [held] = cache.held.take_changes().values()
    assert MAX_NODES // 2 < held <= MAX_NODES + len(ADA)


def test_a_tail_is_not_of_a_root() -> None:
    cache = Cache()
    cache.put(ADA)
    cache.note(ADA)
    tree = cache.tree
    end = tree.walk(tree.root(NAMESPACE), key((*SYSTEM, *ADA)))[0][-1]
    tail = tree.root(NAMESPACE, TAIL_MARK + b"x")
    tree.hang(tail, [end])
    tree.insert(tail, key((*SYSTEM, *ADA)), np.arange(900, 905), 5)
    assert cache.held.take_changes() == {name(ADA): 2}
    cache.evict(5)  # the tail goes first
    assert cache.held.take_changes() == {}


def test_a_flush_forgets_all() -> None:
    cache = Cache()
    cache.put(ADA)
    cache.note(ADA)
    cache.held.take_changes()
    cache.tree.reset()
    cache.held.note_all()
    assert cache.held.take_changes() == {name(ADA): 0}


def test_few_are_counted_at_a_time_and_none_forgotten() -> None:
    cache = Cache()
    rows = [(100 + i, 1) for i in range(50)]
    cache.put(*rows)
    cache.note(*rows)
    told: dict[str, int] = {}
    num_calls = 0
    while changes := cache.held.take_changes(max_counted=10):
        told |= changes
        num_calls += 1
    assert 5 < num_calls < 60
    assert told == {name(row): 2 for row in rows}


def test_the_roots_met_longest_ago_are_given_up() -> None:
    cache = Cache(max_roots=3)
    rows = [(100 + i,) for i in range(5)]
    cache.put(*rows)
    cache.note(*rows[:3])
    cache.held.take_changes()
    cache.note(rows[0], rows[4])
    assert cache.held.take_changes() == {name(rows[1]): 0, name(rows[4]): 1}
    assert set(cache.held.held()) == {name(rows[i]) for i in (0, 2, 4)}


def test_ever_new_systems_are_not_all_kept() -> None:
    cache = Cache()
    for i in range(MAX_SYSTEMS + 10):
        system = (1000 + i,)
        cache.put((7,), system=system)
        cache.held.note_request(NAMESPACE, key(system), [(f"root {i}", key((7,)))])
    assert len(cache.held.take_changes()) == MAX_SYSTEMS
    cache.evict(10_000)
    assert len(cache.held.take_changes()) == MAX_SYSTEMS
    cache.put(ADA)
    cache.note(ADA)  # there is room again
    assert cache.held.take_changes() == {name(ADA): 2}


def test_a_copy_in_host_memory_is_held() -> None:
    cache = Cache()
    cache.put(ADA)
    held = HeldRoots(cache.tree, ("host",))
    held.note_request(NAMESPACE, key(SYSTEM), [("ada", key(ADA))])
    assert held.take_changes() == {"ada": 2}
    nodes = list(cache.tree.nodes())
    for node in nodes:
        node.copies = {"host": object()}
    for node, _ in cache.tree.evict(100):
        held.note_eviction("device", node)
    assert held.take_changes() == {}
    for node in nodes:
        node.copies = {"disk": object()}
        held.note_eviction("host", node)
    assert held.take_changes() == {"ada": 0}


@pytest.mark.parametrize("seed", range(20))
def test_what_is_told_is_what_is_there(seed: int) -> None:
    rng = random.Random(seed)
    cache = Cache()
    roots = [ADA, BOB, BEN, (10,), (30, 31)]
    told: dict[str, int] = {}
    for _ in range(200):
        action = rng.random()
        if action < 0.5:
            root = rng.choice(roots)
            rest = tuple(rng.choices(range(40, 44), k=rng.randint(0, 4)))
            cache.put((*root, *rest))
            # A root that begins as another does is counted anew only when it is named itself.
            cache.note(*(each for each in roots if each == (*root, *rest)[: len(each)]))
        elif action < 0.8:
            cache.evict(rng.randint(1, 12))
        elif action < 0.85:
            cache.tree.reset()
            cache.held.note_all()
        else:
            told |= cache.held.take_changes()
            noted = {name(root): root for root in roots}
            for each, number in told.items():
                if number:  # else nobody may know it any more
                    assert number == cache.count(noted[each])
            for each, root in noted.items():
                assert not told.get(each) or cache.count(root)
