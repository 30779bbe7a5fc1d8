# SPDX-License-Identifier: Apache-2.0
"""The queue of nodes that may be evicted, the least worthy first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from depcache.cache.node import Node

# Places of a bucket that are gone are kept until they are so many, and half of it.
_MOST_GONE = 256


class _Bucket:
    """Nodes of one worth, the oldest first; those before `head` are gone."""

    __slots__ = ("head", "nodes")

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.head = 0


class VictimQueue:
    """Nodes by their worth, and among equals by their age in the queue.

    What one request used is mostly worth the same, so the worths are few: a heap orders them,
    and a list holds the nodes of each. Outdated places are dropped when they surface.

    A worth that grew since the node was offered is seen when the node surfaces, so look-ahead
    needs no scan of the queue: what it protects is put back with its new worth. A worth that
    shrank must be offered again.

    capacity    tokens that the tier can hold, where somebody has said so
    num_within  tokens of victims whose tenant had no more than its share, see `FairQueue`
    """

    def __init__(self, worth: Callable[[Node], float]) -> None:
        self._worth = worth
        self._worths: dict[Node, float] = {}
        self._buckets: dict[float, _Bucket] = {}
        self._heap: list[float] = []  # the keys of the buckets
        self._num_places = 0  # in all buckets, outdated ones included
        self.capacity = self.num_within = 0

    def __len__(self) -> int:
        return len(self._worths)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._worths)

    def __contains__(self, node: Node) -> bool:
        return node in self._worths

    def clear(self) -> None:
        """Forget all nodes, and what was counted."""
        self._empty()

    def _empty(self) -> None:
        self._worths.clear()
        self._buckets.clear()
        self._heap.clear()
        self._num_places = 0

    def offer(self, node: Node) -> None:
        """Put `node` in at what it is worth now. O(log(worths)).

        In place of its earlier entry; one that is worth the same as before keeps its age.
        """
        worths, worth = self._worths, self._worth(node)
        if worths.get(node) == worth:
            return
        self._put(node, worth)
        if self._num_places > 2 * len(worths) + _MOST_GONE:
            self._rebuild(dict(worths))

    def revalue(self) -> None:
        """Value all nodes anew; equals keep their order. O(n)."""
        self._rebuild({node: self._worth(node) for node in self._worths})

    def withdraw(self, node: Node) -> None:
        """Take `node` out, if it is in."""
        self._worths.pop(node, None)

    def count(self, node: Node, num_tokens: int) -> None:
        """The tier holds so many tokens of `node`'s tenant more, or fewer: all are alike here."""

    def hold(self, tenant: Hashable, num_tokens: int) -> None:
        """The same for what is not in the tree; `tenant` as `tenant_of` or `stranger` has it."""

    def tenant_of(self, namespace: Any) -> Hashable:
        """Whose the KV of a namespace is: everybody's are alike here."""
        return None

    def stranger(self, mark: Hashable) -> Hashable:
        """A tenant whose name is not known yet, by anything that is the tenant's alone."""
        return None

    def over(self) -> list[Hashable]:
        """Tenants that hold more than their share."""
        return [None]

    def check(self, held: Sequence[Node]) -> None:
        """Raise RuntimeError where what is counted is not what the tier holds: these nodes."""

    def pop(self, *, within: bool = True) -> tuple[float, Node] | None:
        """The least worthy node with its worth, taken out; None when there is none.

        within  False: only of tenants above their share
        """
        found = self.peek()
        if found is not None:
            del self._worths[found[1]]
            self._buckets[found[0]].head += 1
            self._num_places -= 1
        return found

    def peek(self) -> tuple[float, Node] | None:
        """The same, left in."""
        worths, heap = self._worths, self._heap
        while heap:
            worth = heap[0]
            bucket = self._buckets[worth]
            nodes, head = bucket.nodes, bucket.head
            while head < len(nodes):
                node = nodes[head]
                if worths.get(node) != worth:
                    head += 1
                    continue
                if node.waiters:  # only what is wanted can have grown in worth
                    now = self._worth(node)
                    if now > worth:
                        self._put(node, now)
                        head += 1
                        continue
                self._num_places -= head - bucket.head
                if head > _MOST_GONE and 2 * head > len(nodes):
                    del nodes[:head]
                    head = 0
                bucket.head = head
                return worth, node
            self._num_places -= len(nodes) - bucket.head
            heapq.heappop(heap)
            del self._buckets[worth]
        return None

    def _put(self, node: Node, worth: float) -> None:
        """Put it behind all others of this worth; it is worth something else so far, or out."""
        self._worths.pop(node, None)  # the dict is in the order of age
        self._worths[node] = worth
        bucket = self._buckets.get(worth)
        if bucket is None:
            bucket = self._buckets[worth] = _Bucket()
            heapq.heappush(self._heap, worth)
        bucket.nodes.append(node)
        self._num_places += 1

    def _rebuild(self, worths: dict[Node, float]) -> None:
        self._empty()
        for node, worth in worths.items():
            self._put(node, worth)
