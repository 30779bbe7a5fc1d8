# SPDX-License-Identifier: Apache-2.0
"""Any sequence of operations on the KV tree, against a model that keeps one entry per token."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from depcache.cache import EVICTION_POLICIES, KVTree, Node, make_policy
from depcache.cache.node import to_key, to_tokens

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

    @precondition(lambda self: self.tree.num_nodes)
    @rule(data=st.data())
    def lock(self, data: st.DataObject) -> None:
        """Hold several paths at once, some of them twice, as requests do."""
        every = list(self.tree.nodes())
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
        dropped = self.tree.evict(num_tokens)
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
        leaves = [node for node in self.tree.nodes() if not node.children and not node.locks]
        by_slot = {int(node.slots[0]): self.tree.policy.priority(node) for node in leaves}
        (slots,) = self.tree.evict(1)
        assert by_slot[int(slots[0])] == min(by_slot.values())
        gone = set(slots.tolist())
        self.cached = {p: entry for p, entry in self.cached.items() if entry[0] not in gone}

    @invariant()
    def tree_is_sound(self) -> None:
        self.tree.check()

    @invariant()
    def tree_holds_what_the_model_holds(self) -> None:
        found: dict[Path, tuple[int, int]] = {}
        for node in self.tree.nodes():
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


def _machine(policy_name: str) -> type:
    name = f"Test{policy_name.title()}Tree"
    machine = type(name, (TreeMachine,), {"policy_name": policy_name})
    case = machine.TestCase
    case.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
    return case


for _name in EVICTION_POLICIES:
    globals()[f"Test{_name.title()}Tree"] = _machine(_name)
