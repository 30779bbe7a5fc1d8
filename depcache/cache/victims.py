# SPDX-License-Identifier: Apache-2.0
"""The queue of nodes that may be evicted, the least worthy first."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from depcache.cache.node import Node


class VictimQueue:
    """A heap whose outdated entries are dropped when they surface. O(log n) per operation.

    A worth that grew since the node was offered is seen when the node surfaces, so look-ahead
    needs no scan of the queue: what it protects is put back with its new worth. A worth that
    shrank must be offered again.
    """

    def __init__(self, worth: Callable[[Node], float]) -> None:
        self._worth = worth
        self._heap: list[tuple[float, int, Node]] = []
        self._entries: dict[Node, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, node: Node) -> bool:
        return node in self._entries

    def clear(self) -> None:
        self._heap.clear()
        self._entries.clear()

    def offer(self, node: Node) -> None:
        """Put `node` in at what it is worth now, in place of an earlier entry of its own."""
        self._count += 1
        self._entries[node] = self._count
        heapq.heappush(self._heap, (self._worth(node), self._count, node))
        if len(self._heap) > 2 * len(self._entries) + 1024:
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapq.heapify(self._heap)

    def revalue(self) -> None:
        """Value all nodes anew; equals keep their order."""
        self._heap = [(self._worth(node), count, node) for node, count in self._entries.items()]
        heapq.heapify(self._heap)

    def withdraw(self, node: Node) -> None:
        """Take `node` out, if it is in."""
        self._entries.pop(node, None)

    def pop(self) -> tuple[float, Node] | None:
        """The least worthy node with its worth, taken out; None when there is none."""
        while self._heap:
            worth, count, node = self._heap[0]
            if self._entries.get(node) != count:
                heapq.heappop(self._heap)
                continue
            if node.waiters:  # only what is wanted can have grown in worth
                now = self._worth(node)
                if now > worth:
                    # The older of two equals goes first, so it keeps its number.
                    heapq.heapreplace(self._heap, (now, count, node))
                    continue
            heapq.heappop(self._heap)
            del self._entries[node]
            return worth, node
        return None

    def _is_valid(self, entry: tuple[float, int, Node]) -> bool:
        return self._entries.get(entry[2]) == entry[1]
