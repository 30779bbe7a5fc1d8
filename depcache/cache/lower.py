# SPDX-License-Identifier: Apache-2.0
"""Which nodes have a copy in host memory: bookkeeping over ints, as the tree's own.

A copy is of use only while the way to it is cached, on the device or here; so leaves go first,
as on the device. Copies are kept when a node's KV comes back to the device.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from depcache.cache.node import NO_SLOTS, Node
from depcache.cache.tree import KVTree
from depcache.cache.victims import VictimQueue


class HostCopies:
    """The host tier of one tree. The caller owns the slots and moves the KV.

    Conservation: `num_tokens` is the number of host slots that nodes have. Slots of copies
    that the tree gives up by itself, because their KV was computed anew at another position,
    collect in `released` until the caller takes them.
    """

    def __init__(self, tree: KVTree) -> None:
        self._tree = tree
        self._victims = VictimQueue(tree.policy.priority)
        self._below: dict[Node, int] = {}  # node -> children with a copy, where there are any
        self._pinned: set[Node] = set()
        self.num_tokens = 0
        self.num_nodes = 0
        self.evicted = 0
        self.released: list[np.ndarray] = []
        tree.host_copies = self

    def clear(self) -> None:
        """Forget all copies; for a tree that was reset."""
        self._victims.clear()
        self._below.clear()
        self._pinned.clear()
        self.released.clear()
        self.num_tokens = self.num_nodes = 0

    def add(self, node: Node, slots: np.ndarray) -> None:
        """`node` has a copy in `slots` (num_tokens,) int64 from now on."""
        assert node.host is None
        assert node.parent is not None
        node.host = slots
        self.num_tokens += node.num_tokens
        self.num_nodes += 1
        self._below[node.parent] = self._below.get(node.parent, 0) + 1
        self._victims.withdraw(node.parent)
        self._offer(node)
        self._tree.version += 1

    def drop(self, node: Node) -> np.ndarray:
        """Take the copy of `node` away; returns its slots. The node may leave the tree by it."""
        slots = node.host
        parent = node.parent
        assert slots is not None
        assert parent is not None
        node.host = None
        self._victims.withdraw(node)
        self.num_tokens -= node.num_tokens
        self.num_nodes -= 1
        self._below[parent] -= 1
        if not self._below[parent]:
            del self._below[parent]
            self._offer(parent)
        self._tree.version += 1
        return slots

    def evict(self, num_tokens: int) -> np.ndarray:
        """Take copies away, leaves first, least worthy first, until `num_tokens` slots are free.

        Returns the slots, the caller's to free; fewer when nothing is left to take.
        """
        taken: list[np.ndarray] = []
        num_taken = 0
        while num_taken < num_tokens:
            found = self._victims.pop()
            if found is None:
                break
            _, node = found
            num_taken += node.num_tokens
            taken.append(self.drop(node))
            self._tree.prune(node)
        self.evicted += num_taken
        return np.concatenate(taken) if taken else NO_SLOTS

    def pin(self, nodes: Iterable[Node]) -> None:
        """Keep the copies of `nodes` until `unpin`; nothing is pinned yet."""
        self._pinned = set(nodes)
        for node in nodes:
            self._victims.withdraw(node)

    def unpin(self) -> None:
        """Nothing is pinned any more."""
        nodes, self._pinned = self._pinned, set()
        for node in nodes:
            self._offer(node)

    def release(self, node: Node) -> None:
        """The tree computed the KV of `node` for another position: the copy is of no use."""
        if node.host is not None:
            self.released.append(self.drop(node))

    def revalue(self) -> None:
        """Value every copy anew, because the policy has changed its mind."""
        self._victims.revalue()

    def note_split(self, upper: Node, lower: Node) -> None:
        """`upper` was cut off the front of `lower`; both have their part of the copy, if any."""
        if lower.host is None:
            return
        self.num_nodes += 1
        self._below[upper] = 1
        if lower in self._pinned:
            self._pinned.add(upper)

    def check(self) -> None:
        """Raise RuntimeError if a count is wrong, or the queue is not the unpinned leaves."""
        nodes = [node for node in self._tree.nodes() if node.host is not None]
        if len(nodes) != self.num_nodes or sum(n.num_tokens for n in nodes) != self.num_tokens:
            raise RuntimeError(
                f"{self.num_nodes} copies of {self.num_tokens} tokens are counted, but "
                f"{len(nodes)} nodes have one"
            )
        below: dict[Node, int] = {}
        for node in nodes:
            assert node.parent is not None
            below[node.parent] = below.get(node.parent, 0) + 1
        if below != self._below:
            raise RuntimeError("children with a copy are counted wrong")
        leaves = {node for node in nodes if node not in below and node not in self._pinned}
        if any(node not in self._victims for node in leaves) or len(leaves) != len(self._victims):
            raise RuntimeError("the queue of copies is not that of the unpinned leaves")
        slots = np.concatenate([node.host for node in nodes if node.host is not None] or [NO_SLOTS])
        if len(np.unique(slots)) != len(slots):
            raise RuntimeError("a host slot is owned by two nodes")

    def _offer(self, node: Node) -> None:
        if node.host is not None and node not in self._below and node not in self._pinned:
            self._victims.offer(node)
