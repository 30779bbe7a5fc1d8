# SPDX-License-Identifier: Apache-2.0
"""LACR whose history forgets as fast as the workload asks: plain LFU, or hits that fade.

LFU is best where popularity is lasting, and keeps what was popular long ago where it is not;
with few requests waiting, look-ahead does not make up for it. Which it is, is found out while
serving, by a miniature simulation (Waldspurger et al., "Cache Modeling and Optimization using
Miniature Simulations", USENIX ATC 2017): each candidate half-life runs a small cache of its
own over a sample of the nodes, chosen by a hash of their path, with numbers only.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from math import inf, log2
from typing import TYPE_CHECKING
from zlib import crc32

from depcache.cache.node import Node
from depcache.cache.policies.base import NOTHING_AGAIN
from depcache.cache.policies.lacr import HISTORY_WEIGHT, Lacr

if TYPE_CHECKING:
    from depcache.cache.tree import KVTree

HALF_LIVES = (16.0, inf)
"""Requests after which a hit counts half. 16 is close to LRU; nothing between them was better."""

SAMPLE = 8
"""One node in so many is simulated."""

ACCESSES_PER_DECISION = 512
"""Simulated accesses between two comparisons; older ones fade by half."""

MARGIN = 1.02
"""A change needs so much more hit tokens, because all queued nodes must be valued again."""


class _Miniature:
    """A cache of sampled nodes under one half-life: sizes and scores, no structure."""

    def __init__(self, half_life: float) -> None:
        self.half_life = half_life
        self.hit_tokens = 0.0
        self._used = 0
        # path hash -> tokens, hits, number of the last access
        self._items: dict[int, tuple[int, int, int]] = {}
        self._heap: list[tuple[float, int, int]] = []
        self._count = 0

    def access(self, path_hash: int, num_tokens: int, request: int, capacity: float) -> None:
        """One request used a node."""
        item = self._items.get(path_hash)
        hits = 1
        if item is not None:
            self.hit_tokens += min(num_tokens, item[0])
            self._used -= item[0]
            hits += item[1]
        self._count += 1
        self._items[path_hash] = (num_tokens, hits, self._count)
        self._used += num_tokens
        score = log2(hits) + request / self.half_life
        heapq.heappush(self._heap, (score, self._count, path_hash))
        while self._used > capacity and self._heap:
            _, count, victim = heapq.heappop(self._heap)
            item = self._items.get(victim)
            if item is not None and item[2] == count:
                self._used -= item[0]
                del self._items[victim]
        if len(self._heap) > 4 * len(self._items) + 64:
            self._heap = [e for e in self._heap if self._items.get(e[2], (0, 0, 0))[2] == e[1]]
            heapq.heapify(self._heap)


class LacrAdaptive(Lacr):
    """`Lacr` that chooses its half-life among `HALF_LIVES`; starts with the first."""

    name = "lacr_adaptive"

    def __init__(self, history_weight: float = HISTORY_WEIGHT, window: int | None = None) -> None:
        super().__init__(history_weight, HALF_LIVES[0], window)
        self._miniatures = [_Miniature(half_life) for half_life in HALF_LIVES]
        self._num_accesses = 0
        self._capacity = inf  # of the device in tokens, as far as it is known

    def attach(self, tree: KVTree) -> None:
        super().attach(tree)
        self._tree = tree

    def note_uses(
        self, nodes: Sequence[Node], now: int, overheads: Mapping[Node, float] = NOTHING_AGAIN
    ) -> None:
        super().note_uses(nodes, now)
        for node in nodes:
            if not node.path_hash % SAMPLE:
                self._access(node)

    def note_insertion(self, node: Node, num_cached: int, num_computed: int) -> None:
        super().note_insertion(node, num_cached, num_computed)
        parent = node.parent
        assert parent is not None
        node.path_hash = crc32(node.key, parent.path_hash)
        if not node.path_hash % SAMPLE:
            self._access(node)

    def note_eviction(self, priority: float) -> None:
        self._capacity = self._tree.num_tokens

    def _access(self, node: Node) -> None:
        """A sampled node is used."""
        capacity = self._capacity / SAMPLE
        for miniature in self._miniatures:
            miniature.access(node.path_hash, node.num_tokens, self._num_requests, capacity)
        self._num_accesses += 1
        if self._num_accesses % ACCESSES_PER_DECISION == 0:
            self._decide()

    def _decide(self) -> None:
        best = max(self._miniatures, key=lambda miniature: miniature.hit_tokens)
        current = next(m for m in self._miniatures if m.half_life == self.half_life)
        if best.hit_tokens > MARGIN * current.hit_tokens:
            self.half_life = best.half_life
            self._tree.revalue()
        for miniature in self._miniatures:
            miniature.hit_tokens /= 2
