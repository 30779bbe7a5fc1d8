# SPDX-License-Identifier: Apache-2.0
"""Which nodes have a copy in one tier below the device: bookkeeping over ints, as the tree's own.

A copy is of use only while the way to it is cached in some tier; so leaves go first, as on the
device. Copies are kept when a node's KV comes back to the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from depcache.cache.node import NO_COPIES, Node

if TYPE_CHECKING:
    from depcache.cache.tree import KVTree

Cut = Callable[[Any, int], tuple[Any, Any]]


def cut_slots(slots: Any, at: int) -> tuple[Any, Any]:
    """Two halves of an array of slots."""
    return slots[:at], slots[at:]


class TierCopies:
    """The copies of one tier. The caller owns what a copy stands for, and moves the KV.

    tier  name of the tier: the copy's key in `Node.copies`
    cut   the two parts of a copy when its node is split after so many tokens; without it a copy
          is an array of slots, one a token

    `victims` is the queue of those that may be given up.

    A *borrowed* copy is one that somebody else keeps, and may take away. Giving it up would free
    nothing, so it is never a victim, and it holds no copy above it back from being one.

    Conservation: `num_tokens` is the number of tokens whose nodes have a copy. Copies that the
    tree gives up by itself, because their KV was computed anew at another position, collect in
    `released` until the caller takes them.
    """

    def __init__(self, tree: KVTree, tier: str, cut: Cut = cut_slots) -> None:
        self.tier = tier
        self._tree = tree
        self._cut = cut
        self.victims = tree.make_queue()
        self._below: dict[Node, int] = {}  # node -> children with a copy, where there are any
        self._pins: dict[Node, int] = {}
        self._borrowed: set[Node] = set()
        self.num_tokens = 0
        self.num_nodes = 0
        self.evicted = 0
        self.evicted_nodes = 0
        self.released: list[tuple[Node, Any]] = []

    def clear(self) -> None:
        """Forget all copies; for a tree that was reset."""
        self.victims.clear()
        self._below.clear()
        self._pins.clear()
        self._borrowed.clear()
        self.released.clear()
        self.num_tokens = self.num_nodes = 0

    def nodes(self) -> Iterator[Node]:
        """Every node that has a copy. O(nodes of the tree)."""
        return (node for node in self._tree.nodes() if self.tier in node.copies)

    @property
    def num_borrowed(self) -> int:
        """Nodes whose copy is borrowed."""
        return len(self._borrowed)

    def borrowed(self) -> list[Node]:
        """Nodes whose copy is borrowed and not pinned, in no order."""
        return [node for node in self._borrowed if node not in self._pins]

    def own(self, node: Node) -> None:
        """The borrowed copy of `node` is ours from now on."""
        self._borrowed.remove(node)
        self._count(node)

    def add(self, node: Node, copy: Any, *, is_borrowed: bool = False) -> None:
        """`node` has `copy` from now on; it had none."""
        assert self.tier not in node.copies
        assert node.parent is not None
        node.copies = {**node.copies, self.tier: copy}
        self.num_tokens += node.num_tokens
        self.num_nodes += 1
        if is_borrowed:
            self._borrowed.add(node)
        else:
            self._count(node)
        self._tree.version += 1

    def _count(self, node: Node) -> None:
        assert node.parent is not None
        self._below[node.parent] = self._below.get(node.parent, 0) + 1
        self.victims.count(node, node.num_tokens)
        self.victims.withdraw(node.parent)
        self.offer(node)

    def drop(self, node: Node) -> Any:
        """Take the copy of `node` away; returns it. `KVTree.prune` the node after it."""
        copies = dict(node.copies)
        copy = copies.pop(self.tier)
        node.copies = copies or NO_COPIES
        parent = node.parent
        assert parent is not None
        self.victims.withdraw(node)
        self.num_tokens -= node.num_tokens
        self.num_nodes -= 1
        self._tree.version += 1
        if node in self._borrowed:
            self._borrowed.remove(node)
            return copy
        self.victims.count(node, -node.num_tokens)
        self._below[parent] -= 1
        if not self._below[parent]:
            del self._below[parent]
            self.offer(parent)
        return copy

    def evict_one(self, *, within: bool = True) -> tuple[Node, Any] | None:
        """Take the least worthy copy away that has none below and is not pinned: (node, copy).

        None when there is none. `KVTree.prune` the node after it.

        within  False: only of tenants above their share
        """
        found = self.victims.pop(within=within)
        if found is None:
            return None
        node = found[1]
        if self._tree.watcher is not None:
            self._tree.watcher.note_eviction(self.tier, node)
        copy = self.drop(node)
        self.evicted += node.num_tokens
        self.evicted_nodes += 1
        return node, copy

    def describe(self) -> dict[str, int]:
        """Sizes and counters, for the status route."""
        return {
            "nodes": self.num_nodes,
            "cached_tokens": self.num_tokens,
            "evicted_tokens": self.evicted,
            "evicted_within_share_tokens": self.victims.num_within,
        }

    def pin(self, nodes: Iterable[Node]) -> None:
        """Keep the copies of `nodes` until `unpin` with the same nodes.

        The parts above a pinned node that is split stay as well: they have a copy below.
        """
        for node in nodes:
            self._pins[node] = self._pins.get(node, 0) + 1
            self.victims.withdraw(node)

    def unpin(self, nodes: Iterable[Node]) -> None:
        """Undo one `pin` of the same nodes."""
        for node in nodes:
            self._pins[node] -= 1
            if not self._pins[node]:
                del self._pins[node]
                self.offer(node)

    def release(self, node: Node) -> None:
        """The tree computed the KV of `node` for another position: the copy is of no use."""
        if self.tier in node.copies:
            self.released.append((node, self.drop(node)))

    def revalue(self) -> None:
        """Value every copy anew, because the policy has changed its mind."""
        self.victims.revalue()

    def split(self, upper: Node, lower: Node) -> None:
        """`upper` was cut off the front of `lower`; both get their part of the copy, if any."""
        copy = lower.copies.get(self.tier)
        if copy is None:
            return
        for node, part in zip((upper, lower), self._cut(copy, upper.num_tokens), strict=True):
            node.copies = {**node.copies, self.tier: part}
        self.num_nodes += 1
        if lower in self._borrowed:
            self._borrowed.add(upper)
            return
        self._below[upper] = 1
        if self._tree.policy.weighs_size:
            self.offer(lower)

    def check(self) -> None:
        """Raise RuntimeError if a count, an owner or the queue of unpinned leaves is wrong."""
        nodes = list(self.nodes())
        if len(nodes) != self.num_nodes or sum(n.num_tokens for n in nodes) != self.num_tokens:
            raise RuntimeError(
                f"{self.num_nodes} copies of {self.num_tokens} tokens are counted, but "
                f"{len(nodes)} nodes have one"
            )
        own = [node for node in nodes if node not in self._borrowed]
        if len(own) + len(self._borrowed) != len(nodes):
            raise RuntimeError("a node without a copy is said to have borrowed one")
        below: dict[Node, int] = {}
        for node in own:
            assert node.parent is not None
            below[node.parent] = below.get(node.parent, 0) + 1
        if below != self._below:
            raise RuntimeError("children with a copy are counted wrong")
        leaves = {node for node in own if node not in below and node not in self._pins}
        if any(node not in self.victims for node in leaves) or len(leaves) != len(self.victims):
            raise RuntimeError("the queue of copies is not that of the unpinned leaves")
        self.victims.check(own)
        if self._cut is cut_slots and nodes:
            sizes = {node: len(node.copies[self.tier]) for node in nodes}
            if any(size != node.num_tokens for node, size in sizes.items()):
                raise RuntimeError(f"a node has {self.tier} slots of another number")
            slots = np.concatenate([node.copies[self.tier] for node in nodes])
            if len(np.unique(slots)) != len(slots):
                raise RuntimeError(f"a {self.tier} slot is owned by two nodes")

    def offer(self, node: Node) -> None:
        """Value a copy that may go anew, because it may be worth less than before."""
        is_leaf = self.tier in node.copies and node not in self._below
        if is_leaf and node not in self._pins and node not in self._borrowed:
            self.victims.offer(node)
