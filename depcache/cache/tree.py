# SPDX-License-Identifier: Apache-2.0
"""The compressed radix tree of cached KV: pure host code over ints, no tensor is touched.

The tree decides, the caller acts: `evict` returns slots for the caller to free, `insert`
says which of the offered slots it took. The path from a root to a node is the list of
tokens that the node's KV depends on (DepCache paper, section 4.2).
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from depcache.cache.node import TOKEN_BYTES, Node, common_prefix_tokens, first_token
from depcache.cache.policies import EvictionPolicy, Lru

_NO_SLOTS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Insertion:
    """What `KVTree.insert` did with the offered tokens.

    num_present    leading tokens that were in the tree already
    present_slots  (num_present,) int64 their slots in the tree
    node           deepest node of the inserted run; the start node when the run was empty
    num_added      tokens whose offered slots the tree now owns (behind the present ones)
    """

    num_present: int
    present_slots: np.ndarray
    node: Node
    num_added: int


@dataclass(slots=True)
class TreeCounters:
    """Running totals, in tokens unless the name says otherwise."""

    inserted: int = 0
    evicted: int = 0
    split_nodes: int = 0
    evicted_nodes: int = 0


class KVTree:
    """Cached KV by namespace. A namespace (tenant salt, LoRA, layout family) has its own root.

    Conservation: `num_evictable + num_locked` is the number of tokens that the tree owns.
    Locked nodes and inner nodes are never evicted; a node whose children are gone is a leaf.
    `version` changes whenever the set of cached tokens changes, so a plan made at the same
    version is still right. Not thread-safe: one scheduler owns it.
    """

    def __init__(self, policy: EvictionPolicy | None = None) -> None:
        self.policy: EvictionPolicy = policy or Lru()
        self.counters = TreeCounters()
        self._tick = 0
        self.version = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything. The caller frees the slots. Old handles must not be used again."""
        self._roots: dict[Hashable, Node] = {}
        self._heap: list[tuple[float, int, int, Node]] = []
        self.num_evictable = 0
        self.num_locked = 0
        self.num_nodes = 0
        self.version += 1

    # -- looking ---------------------------------------------------------------------------

    def root(self, namespace: Hashable) -> Node:
        """The root of a namespace; made on first use. Holds no tokens and is never evicted."""
        node = self._roots.get(namespace)
        if node is None:
            node = self._roots[namespace] = Node(b"", _NO_SLOTS, 0, None)
        return node

    @property
    def num_tokens(self) -> int:
        return self.num_evictable + self.num_locked

    def nodes(self) -> Iterator[Node]:
        """Every node but the roots, parents before children."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())

    @staticmethod
    def path(node: Node) -> list[Node]:
        """`node` and its ancestors, the root left out, deepest first."""
        nodes: list[Node] = []
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes

    def walk(self, node: Node, key: bytes) -> tuple[list[Node], int]:
        """Follow `key` down from `node` as far as it is cached.

        Returns the nodes passed and the number of matched tokens. A match that ends inside a
        node splits it, so the nodes cover exactly the matched tokens; nothing else changes.
        """
        path: list[Node] = []
        at, size = 0, len(key)
        while at < size:
            child = node.children.get(first_token(key[at : at + TOKEN_BYTES]))
            if child is None:
                break
            end = at + len(child.key)
            if end <= size and key[at:end] == child.key:
                path.append(child)
                node, at = child, end
                continue
            matched = common_prefix_tokens(child.key, key[at:])
            path.append(self.split(child, matched))
            at += matched * TOKEN_BYTES
            break
        return path, at // TOKEN_BYTES

    # -- growing ---------------------------------------------------------------------------

    def split(self, node: Node, num_tokens: int) -> Node:
        """Cut `node` after `num_tokens`; returns the new upper node.

        `node` stays the lower half, with its children and locks: whoever holds it still
        holds the end of the same run. Slots, homes and accounting are unchanged.
        """
        parent = node.parent
        if parent is None or not 0 < num_tokens < node.num_tokens:
            raise ValueError(f"cannot split {node!r} after {num_tokens} tokens")
        cut = num_tokens * TOKEN_BYTES
        upper = Node(node.key[:cut], node.slots[:num_tokens], node.home, parent)
        upper.locks = 1 if node.locks else 0
        upper.hits, upper.last_use = node.hits, node.last_use
        parent.children[upper.first_token] = upper
        node.key, node.slots = node.key[cut:], node.slots[num_tokens:]
        node.num_tokens -= num_tokens
        node.home += num_tokens
        node.parent = upper
        upper.children[node.first_token] = node
        self.num_nodes += 1
        self.counters.split_nodes += 1
        return upper

    def insert(self, node: Node, key: bytes, slots: np.ndarray, home: int) -> Insertion:
        """Add the run `key` below `node`. What is present already is kept, not overwritten.

        slots  (num_tokens,) int64, one per token of `key`; the tail that was not present
               becomes the tree's (a copy is taken), the caller keeps the rest
        home   position that the key of the first token was rotated for
        """
        path, present = self.walk(node, key)
        end = path[-1] if path else node
        present_slots = np.concatenate([n.slots for n in path]) if path else _NO_SLOTS
        num_added = len(key) // TOKEN_BYTES - present
        if num_added:
            added = Node(
                key[present * TOKEN_BYTES :],
                np.array(slots[present:], dtype=np.int64),
                home + present,
                end,
            )
            end.children[added.first_token] = added
            added.last_use = self.tick()
            self.num_nodes += 1
            self.num_evictable += num_added
            self.counters.inserted += num_added
            self.version += 1
            self._offer(added)
            end = added
        return Insertion(present, present_slots, end, num_added)

    # -- using -----------------------------------------------------------------------------

    def tick(self) -> int:
        """Next tick of the tree's clock. A counter, not a time: ranks of one model agree on it."""
        self._tick += 1
        return self._tick

    def touch(self, nodes: Iterable[Node]) -> None:
        """Count one use of each node. Call it while the nodes are locked."""
        now = self.tick()
        for node in nodes:
            node.hits += 1
            node.last_use = now

    def lock(self, nodes: Iterable[Node]) -> None:
        """Keep `nodes` and their ancestors from eviction until `unlock` with the same nodes."""
        for node in nodes:
            # A locked child counts once in its parent, so the walk stops at the first
            # ancestor that somebody holds already: the cost is the newly locked nodes.
            while node.parent is not None:
                node.locks += 1
                if node.locks > 1:
                    break
                self.num_evictable -= node.num_tokens
                self.num_locked += node.num_tokens
                node = node.parent

    def unlock(self, nodes: Iterable[Node]) -> None:
        """Undo one `lock` of the same nodes. Leaves that nobody holds become evictable."""
        for node in nodes:
            while node.parent is not None:
                if node.locks <= 0:
                    raise RuntimeError(f"unlock of a node that is not locked: {node!r}")
                node.locks -= 1
                if node.locks:
                    break
                self.num_evictable += node.num_tokens
                self.num_locked -= node.num_tokens
                self._offer(node)
                node = node.parent

    # -- shrinking -------------------------------------------------------------------------

    def evict(self, num_tokens: int) -> list[np.ndarray]:
        """Drop unlocked leaves, least worthy first, until `num_tokens` are gone or none is left.

        Returns the dropped nodes' slots, one array (num_tokens,) int64 a node: the caller's
        to free. O(log n) per node.
        """
        dropped: list[np.ndarray] = []
        num_dropped = 0
        while num_dropped < num_tokens and self._heap:
            _, _, stamp, node = heapq.heappop(self._heap)
            if stamp != node.stamp or not node.is_evictable:
                continue
            dropped.append(node.slots)
            num_dropped += node.num_tokens
            self._remove_leaf(node)
        self.counters.evicted += num_dropped
        self.counters.evicted_nodes += len(dropped)
        return dropped

    def _remove_leaf(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.first_token]
        node.parent = None
        self.num_evictable -= node.num_tokens
        self.num_nodes -= 1
        self.version += 1
        self._offer(parent)

    def _offer(self, node: Node) -> None:
        """Queue `node` for eviction if it is an unlocked leaf. Entries are voided lazily."""
        if not node.is_evictable:
            return
        node.stamp += 1
        tick = self.tick()
        heapq.heappush(self._heap, (self.policy.priority(node), tick, node.stamp, node))
        if len(self._heap) > 4 * self.num_nodes + 1024:
            self._heap = [e for e in self._heap if e[2] == e[3].stamp and e[3].is_evictable]
            heapq.heapify(self._heap)

    # -- checking --------------------------------------------------------------------------

    def check(self) -> None:
        """Raise RuntimeError if a structural invariant does not hold. O(nodes); for tests.

        Keys, slots and children agree; no slot is owned twice; locks count direct locks plus
        locked children; the totals equal the sums over nodes; every unlocked leaf is queued.
        """
        evictable = locked = count = 0
        seen: list[np.ndarray] = []
        queued = {id(e[3]) for e in self._heap if e[2] == e[3].stamp}
        for node in self.nodes():
            count += 1
            seen.append(node.slots)
            held = sum(1 for child in node.children.values() if child.locks)
            problems = [
                (not node.num_tokens, "has no tokens"),
                (len(node.key) != TOKEN_BYTES * node.num_tokens, "has a key of another length"),
                (len(node.slots) != node.num_tokens, "has slots of another number"),
                (node.locks < held, "has fewer locks than locked children"),
                (node.is_evictable and id(node) not in queued, "is evictable but not queued"),
                (any(c.parent is not node for c in node.children.values()), "has a stray child"),
                (any(t != c.first_token for t, c in node.children.items()), "has a wrong edge"),
            ]
            for wrong, what in problems:
                if wrong:
                    raise RuntimeError(f"{node!r} {what}")
            if node.locks:
                locked += node.num_tokens
            else:
                evictable += node.num_tokens
        if (evictable, locked, count) != (self.num_evictable, self.num_locked, self.num_nodes):
            raise RuntimeError(
                f"totals disagree: evictable {self.num_evictable} is {evictable}, "
                f"locked {self.num_locked} is {locked}, nodes {self.num_nodes} is {count}"
            )
        slots = np.concatenate(seen) if seen else _NO_SLOTS
        if len(np.unique(slots)) != len(slots):
            raise RuntimeError("a slot is owned by two nodes")
