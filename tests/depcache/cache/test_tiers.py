# SPDX-License-Identifier: Apache-2.0
"""A new tier is one class and one line: nodes go down through it, and are found in it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from depcache.cache import KVTree, Node, Tier, TierCopies
from depcache.cache.invariants import check_tree
from depcache.cache.radix import to_key, to_tokens
from depcache.plan import SegmentTable, match_segments
from depcache.plan.look import look_up

KV = dict[int, tuple[int, ...]]
"""Memory of one tier: slot -> the tokens whose KV was put there, from the root on."""


class Memory(Tier):
    """The new tier: `num_tokens` slots in a memory of its own."""

    def __init__(self, tree: KVTree, name: str, above: KV, num_tokens: int) -> None:
        super().__init__(TierCopies(tree, name))
        self.kv: KV = {}
        self._tree = tree
        self._above = above
        self._free = list(range(num_tokens))

    def keep(self, leaving: list[tuple[Node, Any]]) -> list[tuple[Node, Any]]:
        name = self.copies.tier
        wanted = [(node, slots) for node, slots in reversed(leaving) if name not in node.copies]
        emptied: list[Node] = []
        for node, slots in wanted:
            emptied += self._make_room(node.num_tokens)
            if len(self._free) < node.num_tokens:
                continue
            own = [self._free.pop() for _ in slots]
            self.kv.update(zip(own, (self._above[slot] for slot in slots.tolist()), strict=True))
            self.copies.add(node, np.array(own))
        for node in emptied:
            self._tree.prune(node)
        return [(node, node.copies[name]) for node, _ in wanted[::-1] if name in node.copies]

    def free(self, copy: Any) -> None:
        for slot in copy.tolist():
            del self.kv[slot]
            self._free.append(slot)

    def _make_room(self, num_tokens: int) -> list[Node]:
        emptied: list[Node] = []
        while len(self._free) < num_tokens and (found := self.copies.evict_one()):
            self.free(found[1])
            emptied.append(found[0])
        return emptied

    def give_up(self, num_tokens: int) -> None:
        """Make room without anybody who wants it."""
        for node in self._make_room(len(self._free) + num_tokens):
            self._tree.prune(node)


class World:
    """A tree with its device and three tiers below it."""

    def __init__(self, *sizes: int) -> None:
        self.tree = KVTree()
        self.device: KV = {}
        self.next_slot = 0
        above = self.device
        for name, size in zip(("host", "disk", "shelf"), sizes, strict=True):
            tier = Memory(self.tree, name, above, size)
            self.tree.tiers.append(tier)
            above = tier.kv
        self.tiers: list[Memory] = list(self.tree.tiers)  # pyright: ignore

    def ask(self, tokens: list[int]) -> None:
        """Bring back what leads to a prompt, compute the rest, and cache it."""
        root = self.tree.root(None)
        table = SegmentTable.of_plain_prompt(np.array(tokens))
        found = match_segments(self.tree, root, table)
        below = {node for nodes in found.in_tiers for node in nodes}
        end = found.ends[0]
        for node in [] if end is None else reversed(KVTree.path(end)):
            if node in below:
                name = next(name for name in self.tree.tiers.names if name in node.copies)
                memory = self.tree.tiers.by_name(self.tiers)[name].kv
                self.tree.make_resident(
                    node, self._take([memory[slot] for slot in node.copies[name].tolist()])
                )
            self.tree.lock([node])
            self.tree.unlock([node])
        rest = tokens[found.matched[0] :]
        if rest:
            paths = [tuple(tokens[: i + 1]) for i in range(found.matched[0], len(tokens))]
            above = root if end is None else end
            self.tree.insert(above, to_key(np.array(rest)), self._take(paths), found.matched[0])

    def _take(self, kv: list[tuple[int, ...]]) -> np.ndarray:
        slots = self.next_slot + np.arange(len(kv))
        self.next_slot += len(kv)
        self.device.update(zip(slots.tolist(), kv, strict=True))
        return slots

    def evict(self, num_tokens: int) -> None:
        for slots in self.tree.tiers.evict(self.tree, num_tokens):
            self._drop(slots)

    def forget(self, node: Node) -> None:
        for slots in self.tree.forget(node)[0]:
            self._drop(slots)
        self.tree.tiers.free_released()

    def _drop(self, slots: np.ndarray) -> None:
        for slot in slots.tolist():
            del self.device[slot]

    def check(self) -> None:
        """Every copy of every node is its KV, and nothing is held for nobody."""
        check_tree(self.tree)
        held = [0, *(0 for _ in self.tiers)]
        for node in self.tree.nodes():
            above = [*reversed(KVTree.path(node))]
            tokens = [token for each in above for token in to_tokens(each.key).tolist()]
            first = len(tokens) - node.num_tokens
            expected = [tuple(tokens[: first + i + 1]) for i in range(node.num_tokens)]
            kept = [(self.device, node.slots)]
            kept += [(tier.kv, node.copies.get(tier.copies.tier)) for tier in self.tiers]
            for number, (memory, slots) in enumerate(kept):
                if slots is not None:
                    assert [memory[slot] for slot in slots.tolist()] == expected
                    held[number] += len(slots)
        assert held == [len(self.device), *(len(tier.kv) for tier in self.tiers)]


def test_an_evicted_node_is_kept_in_every_tier_and_found_in_the_third_when_the_others_lost_it() -> (
    None
):
    world = World(100, 100, 100)
    world.ask([1, 2, 3, 4])
    world.ask([1, 2, 5])
    world.evict(100)
    world.check()
    assert world.device == {} and [len(tier.kv) for tier in world.tiers] == [5, 5, 5]
    for number, tier in enumerate(world.tiers):
        found = look_up(
            world.tree, world.tree.root(None), SegmentTable.of_plain_prompt(np.array([1, 2, 5]))
        )
        assert world.tree.tiers.by_name(found.in_tiers)[tier.copies.tier] == 3
        assert sum(found.in_tiers) == 3
        if number < 2:
            tier.give_up(100)
    world.ask([1, 2, 5])  # back on the device, from the shelf
    assert sorted(world.device.values()) == [(1,), (1, 2), (1, 2, 5)]
    world.check()


def test_a_copy_goes_with_its_node_when_the_node_is_forgotten_or_split() -> None:
    world = World(100, 100, 100)
    world.ask([1, 2, 3, 4])
    world.evict(100)
    world.ask([1, 2, 9])  # splits what is in all tiers
    world.check()
    assert all(tier.copies.num_nodes == 2 for tier in world.tiers)
    [top] = world.tree.root(None).children.values()
    world.forget(top)
    world.check()
    assert world.tree.num_nodes == 0 and not any(tier.kv for tier in world.tiers)


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_leaves_every_copy_right(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng.randrange(4, 12), rng.randrange(8, 24), rng.randrange(16, 48))
    reached = 0
    for _ in range(150):
        match rng.randrange(8):
            case 0:
                world.evict(rng.randrange(1, 10))
            case 1:
                rng.choice(world.tiers).give_up(rng.randrange(1, 6))
            case 2 if nodes := list(world.tree.nodes()):
                if rng.random() < 0.2:
                    world.forget(rng.choice(nodes))
            case _:
                world.ask([rng.randrange(2) for _ in range(rng.randrange(1, 9))])
        world.check()
        reached += any(list(node.copies) == ["shelf"] for node in world.tree.nodes())
    assert reached  # now and then a node was in the third tier alone
