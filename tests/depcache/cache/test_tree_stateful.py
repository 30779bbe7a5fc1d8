# SPDX-License-Identifier: Apache-2.0
"""Any sequence of operations on the KV tree, against a model that keeps one entry per token."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from depcache.cache import EVICTION_POLICIES, KVTree, Node, Tier, TierCopies, make_policy
from depcache.cache.invariants import check_tree
from depcache.cache.radix import to_key, to_tokens
from depcache.plan import Lookahead, SegmentTable
from tests.helpers.keeper import Keeper

Path = tuple[object, ...]
"""(namespace, token, token, ...): one cached token, named by the way that leads to it."""

namespaces = st.sampled_from(["a", "a", "b"])
runs = st.lists(st.integers(0, 1), min_size=1, max_size=8)  # two tokens: paths fork everywhere


class TreeMachine(RuleBasedStateMachine):
    """The model knows nothing of nodes: a slot and a home per path, and a bag of held paths."""

    policy_name = "lru"

    def __init__(self) -> None:
        super().__init__()
        self.tree = KVTree(make_policy(self.policy_name))
        self.cached: dict[Path, tuple[int, int]] = {}
        self.held: list[tuple[list[Node], list[Path]]] = []
        self.free_slot = 0

    def _matched(self, start: Path, tokens: list[int]) -> int:
        count = 0
        while count < len(tokens) and (*start, *tokens[: count + 1]) in self.cached:
            count += 1
        return count

    def _locked(self) -> set[Path]:
        return {
            path[:length]
            for _, paths in self.held
            for path in paths
            for length in range(2, len(path) + 1)
        }

    def _path_of(self, node: Node) -> Path:
        run: list[int] = []
        for above in KVTree.path(node):
            run = to_tokens(above.key).tolist() + run
        namespace = next(n for n in ("a", "b") if self._is_below(node, self.tree.root(n)))
        return (namespace, *run)

    @staticmethod
    def _is_below(node: Node, root: Node) -> bool:
        while node.parent is not None:
            node = node.parent
        return node is root

    def _resident(self) -> list[Node]:
        return [node for node in self.tree.nodes() if node.slots is not None]

    @rule(namespace=namespaces, tokens=runs)
    def walk(self, namespace: str, tokens: list[int]) -> None:
        version = self.tree.version
        path, matched = self.tree.walk(self.tree.root(namespace), to_key(np.array(tokens)))
        assert matched == self._matched((namespace,), tokens)
        found = np.concatenate([node.slots for node in path]).tolist() if path else []
        expected = [self.cached[namespace, *tokens[: i + 1]][0] for i in range(matched)]
        assert found == expected
        assert self.tree.version == version

    @rule(namespace=namespaces, above=runs, tokens=runs, home=st.integers(0, 50))
    def insert(self, namespace: str, above: list[int], tokens: list[int], home: int) -> None:
        """Below whatever of `above` is cached, as a request with hits does."""
        path, matched = self.tree.walk(self.tree.root(namespace), to_key(np.array(above)))
        node = path[-1] if path else self.tree.root(namespace)
        start = (namespace, *above[:matched])
        present = self._matched(start, tokens)
        version = self.tree.version

        offered = self.free_slot + np.arange(len(tokens))
        self.free_slot += len(tokens)
        inserted = self.tree.insert(node, to_key(np.array(tokens)), offered, home)

        expected = [self.cached[*start, *tokens[: i + 1]][0] for i in range(present)]
        assert inserted.num_present == present
        assert inserted.present_slots.tolist() == expected
        assert inserted.num_added == len(tokens) - present
        assert self._path_of(inserted.node) == (*start, *tokens)
        assert (self.tree.version != version) == (present < len(tokens))
        for i in range(present, len(tokens)):
            self.cached[*start, *tokens[: i + 1]] = (int(offered[i]), home + i)

    @precondition(lambda self: self.tree.num_resident)
    @rule(data=st.data())
    def lock(self, data: st.DataObject) -> None:
        """Hold several paths at once, some of them twice, as requests do."""
        every = self._resident()
        nodes = data.draw(st.lists(st.sampled_from(every), min_size=1, max_size=3))
        self.tree.lock(nodes)
        self.tree.touch(nodes)
        self.held.append((nodes, [self._path_of(node) for node in nodes]))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        nodes, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.tree.unlock(nodes)

    @precondition(lambda self: self.tree.num_nodes)
    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        nodes = [node for node in self.tree.nodes() if node.num_tokens > 1]
        if nodes:
            node = data.draw(st.sampled_from(nodes))
            self.tree.split(node, data.draw(st.integers(1, node.num_tokens - 1)))

    @rule(num_tokens=st.integers(0, 12))
    def evict(self, num_tokens: int) -> None:
        path_of_slot = {slot: path for path, (slot, _) in self.cached.items()}
        locked = self._locked()
        dropped = self.tree.tiers.evict(self.tree, num_tokens)
        for slots in dropped:
            for slot in slots.tolist():
                path = path_of_slot[slot]
                assert path not in locked
                del self.cached[path]
        num_dropped = sum(map(len, dropped))
        if num_dropped < num_tokens:
            assert set(self.cached) == locked
        elif dropped:
            assert num_dropped - len(dropped[-1]) < num_tokens

    @precondition(lambda self: self.tree.num_evictable)
    @rule()
    def evict_one(self) -> None:
        """What goes is the least worthy leaf that nobody holds."""
        leaves = [
            node
            for node in self._resident()
            if not node.locks and all(child.slots is None for child in node.children.values())
        ]
        by_slot = {int(node.slots[0]): self.tree.policy.priority(node) for node in leaves}
        (slots,) = self.tree.tiers.evict(self.tree, 1)
        assert by_slot[int(slots[0])] == min(by_slot.values())
        gone = set(slots.tolist())
        self.cached = {p: entry for p, entry in self.cached.items() if entry[0] not in gone}

    @invariant()
    def tree_is_sound(self) -> None:
        check_tree(self.tree)

    @invariant()
    def tree_holds_what_the_model_holds(self) -> None:
        found: dict[Path, tuple[int, int]] = {}
        for node in self._resident():
            path = self._path_of(node)
            first = len(path) - node.num_tokens
            for i, slot in enumerate(node.slots.tolist()):
                found[path[: first + i + 1]] = (slot, node.home + i)
        assert found == self.cached

    @invariant()
    def totals_are_the_models(self) -> None:
        num_locked = len(self._locked())
        assert self.tree.num_locked == num_locked
        assert self.tree.num_evictable == len(self.cached) - num_locked

    @invariant()
    def locks_count_handles_and_locked_children(self) -> None:
        direct = Counter(id(node) for nodes, _ in self.held for node in nodes)
        for node in self.tree.nodes():
            children = sum(1 for child in node.children.values() if child.locks)
            assert node.locks == direct[id(node)] + children


class TierMachine(TreeMachine):
    """The same tree with a host and a disk tier, and requests that wait: nodes outlive their KV.

    The host's memory is a dict from slot to the path whose KV was put there, a copy on disk a
    tuple of what was stored; a copy must hold the KV of its node, whatever was split, evicted,
    loaded, forgotten or computed anew in between.
    """

    policy_name = "lacr"
    host_tokens = 24

    def __init__(self) -> None:
        super().__init__()
        self.copies = TierCopies(self.tree, "host")
        self.on_disk = TierCopies(self.tree, "disk", cut=lambda kv, at: (kv[:at], kv[at:]))
        self.tree.tiers.append(Keeper(self.copies, self._demote))
        self.tree.tiers.append(Tier(self.on_disk))
        self.pinned: list[tuple[TierCopies, list[Node]]] = []
        self.lookahead = Lookahead(self.tree)
        self.free_host = set(range(self.host_tokens))
        self.host: dict[int, tuple[Path, int]] = {}
        self.num_waiters = 0

    def _give_back(self, slots: np.ndarray) -> None:
        for slot in slots.tolist():
            del self.host[slot]
            self.free_host.add(slot)

    def _make_room(self, num_tokens: int) -> None:
        while len(self.free_host) < num_tokens and (found := self.copies.evict_one()):
            self._give_back(found[1])
            self.tree.prune(found[0])

    def _kv_of(self, node: Node) -> list[tuple[Path, int]]:
        path = self._path_of(node)
        first = len(path) - node.num_tokens
        return [(path[: first + i + 1], node.home + i) for i in range(node.num_tokens)]

    def _demote(self, victims: list[tuple[Node, np.ndarray]]) -> None:
        for node, slots in reversed(victims):
            if "host" in node.copies or node.parent is None:
                continue
            self._make_room(node.num_tokens)
            if node.num_tokens > len(self.free_host) or node.parent is None:
                continue
            host_slots = np.array([self.free_host.pop() for _ in slots])
            self.host.update(zip(host_slots.tolist(), self._kv_of(node), strict=True))
            self.copies.add(node, host_slots)

    @precondition(lambda self: self.copies.num_nodes)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        """Bring one node back below a parent that is on the device."""
        loadable = [
            node
            for node in self.tree.nodes()
            if node.slots is None
            and "host" in node.copies
            and node.parent is not None
            and node.parent.slots is not None
        ]
        if not loadable:
            return
        node = data.draw(st.sampled_from(loadable))
        slots = self.free_slot + np.arange(node.num_tokens)
        self.free_slot += node.num_tokens
        self.tree.make_resident(node, slots)
        self.tree.lock([node])
        self.tree.unlock([node])
        for slot, (path, home) in zip(slots.tolist(), self._kv_of(node), strict=True):
            self.cached[path] = (slot, home)

    @rule(num_tokens=st.integers(0, 12))
    def evict_copies(self, num_tokens: int) -> None:
        self._make_room(min(len(self.free_host) + num_tokens, self.host_tokens))

    @precondition(lambda self: self.copies.num_nodes)
    @rule(data=st.data(), is_borrowed=st.booleans())
    def store_on_disk(self, data: st.DataObject, is_borrowed: bool) -> None:
        """As after a write, here or at a neighbour: what is in host memory gets a copy on disk."""
        unstored = [node for node in self.copies.nodes() if "disk" not in node.copies]
        for node in [data.draw(st.sampled_from(unstored))] if unstored else ():
            self.on_disk.add(node, tuple(self._kv_of(node)), is_borrowed=is_borrowed)

    @precondition(lambda self: self.on_disk.num_nodes)
    @rule(data=st.data())
    def fetch_from_disk(self, data: st.DataObject) -> None:
        """As after a prefetch: what is on disk only gets a copy in host memory."""
        lacking = [node for node in self.on_disk.nodes() if "host" not in node.copies]
        if not lacking:
            return
        node = data.draw(st.sampled_from(lacking))
        kv = node.copies["disk"]
        self.on_disk.pin([node])
        self._make_room(node.num_tokens)
        if node.num_tokens <= len(self.free_host):
            slots = np.array([self.free_host.pop() for _ in kv])
            self.host.update(zip(slots.tolist(), kv, strict=True))
            self.copies.add(node, slots)
        self.on_disk.unpin([node])

    @rule(data=st.data(), what=st.sampled_from(["evicted", "inherited", "removed"]))
    def lose_on_disk(self, data: st.DataObject, what: str) -> None:
        if what == "evicted" and (found := self.on_disk.evict_one()) is not None:
            self.tree.prune(found[0])
        elif borrowed := sorted(self.on_disk.borrowed(), key=self._path_of):
            node = data.draw(st.sampled_from(borrowed))
            self.on_disk.own(node) if what == "inherited" else self.on_disk.drop(node)
            self.tree.prune(node)

    @rule(data=st.data(), is_host=st.booleans())
    def pin(self, data: st.DataObject, is_host: bool) -> None:
        copies = self.copies if is_host else self.on_disk
        nodes = list(copies.nodes())
        if nodes:
            chosen = data.draw(st.lists(st.sampled_from(nodes), max_size=3))
            copies.pin(chosen)
            self.pinned.append((copies, chosen))

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.pinned) - 1))
        copies, nodes = self.pinned.pop(index)
        copies.unpin(nodes)

    @precondition(lambda self: self.tree.num_nodes)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(list(self.tree.nodes())))
        prefix, locked = self._path_of(node)[: -node.num_tokens], self._locked()
        start = (*prefix, *to_tokens(node.key).tolist())
        gone = {p for p in self.cached if p[: len(start)] == start or self._is_in(p, start, node)}
        freed, num_kept = self.tree.forget(node)
        slots = {slot for each in freed for slot in each.tolist()}
        assert slots == {self.cached[path][0] for path in gone - locked}
        assert num_kept == len(gone & locked)
        self.cached = {p: entry for p, entry in self.cached.items() if p not in gone - locked}

    @staticmethod
    def _is_in(path: Path, end: Path, node: Node) -> bool:
        """Whether the token `path` is one of the node's own, whose last is `end`."""
        return len(end) - node.num_tokens < len(path) <= len(end) and end[: len(path)] == path

    @rule(namespace=namespaces, tokens=runs)
    def wait(self, namespace: str, tokens: list[int]) -> None:
        table = SegmentTable.of_plain_prompt(np.array(tokens))
        self.lookahead.enter(self.num_waiters, namespace, table)
        self.num_waiters += 1

    @precondition(lambda self: len(self.lookahead))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.lookahead.leave(data.draw(st.sampled_from(sorted(self.tree.rank))))

    @precondition(lambda self: len(self.lookahead))
    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        self.lookahead.set_order(data.draw(st.permutations(sorted(self.tree.rank))))

    def evict_one(self) -> None:
        """Not here: a new order may have made a victim less worthy than its place says."""

    @rule()
    def flush(self) -> None:
        for nodes, _ in self.held:
            self.tree.unlock(nodes)
        self.held.clear()
        self.lookahead.clear()
        self.pinned.clear()
        self.tree.reset()
        self.cached.clear()
        self.host.clear()
        self.free_host = set(range(self.host_tokens))

    @invariant()
    def copies_are_sound(self) -> None:
        while self.copies.released:
            self._give_back(self.copies.released.pop()[1])
        self.on_disk.released.clear()
        assert self.copies.num_tokens == len(self.host) == self.host_tokens - len(self.free_host)

    @invariant()
    def copies_hold_the_kv_of_their_nodes(self) -> None:
        for node in self.tree.nodes():
            if "host" in node.copies:
                slots = node.copies["host"].tolist()
                assert [self.host[slot] for slot in slots] == self._kv_of(node)
            if "disk" in node.copies:
                assert list(node.copies["disk"]) == self._kv_of(node)

    @invariant()
    def waiters_are_on_all_they_want_and_nothing_is_kept_for_nobody(self) -> None:
        for node in self.tree.nodes():
            for waiter in node.waiters or ():
                assert waiter in self.lookahead
                above = node.parent
                assert above is not None
                assert above.is_root or (above.waiters and waiter in above.waiters)


def _case(machine: type[TreeMachine], policy_name: str, max_examples: int) -> type:
    named = type(f"{policy_name.title()}Machine", (machine,), {"policy_name": policy_name})
    case = named.TestCase
    case.settings = settings(max_examples=max_examples, stateful_step_count=40, deadline=None)
    return case


TestTree = _case(TreeMachine, "lru", 100)
TestTiers = _case(TierMachine, "lacr", 100)

# 100,000 operations on each: `make test-all`.
TestTreeLong = pytest.mark.slow(_case(TreeMachine, "lru", 2500))
TestTiersLong = pytest.mark.slow(_case(TierMachine, "lacr", 2500))

for _name in EVICTION_POLICIES:
    globals()[f"Test{_name.title()}Tree"] = _case(TreeMachine, _name, 15)
