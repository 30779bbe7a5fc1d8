# SPDX-License-Identifier: Apache-2.0
"""LACR: what history says about the next access, and what the waiting queue says.

    priority = a * history + (1 - a) * future         (DepCache paper, section 4.2.2, equation 6)

Both terms are on one scale, accesses per request. History is the node's frequency: its hits
over the requests seen. Future counts the accesses of the waiting queue, the one at rank r as
1 / (r + 1): a node whose only use is r + 1 requests away is used once in so many requests.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import inf, log2
from typing import TYPE_CHECKING

from depcache.cache.node import Node
from depcache.cache.policies.base import NOTHING_AGAIN, EvictionPolicy

if TYPE_CHECKING:
    from depcache.cache.tree import KVTree

HISTORY_WEIGHT = 0.2
"""The paper's a, "found to perform well under a range of representative scenarios"."""


NEXT_TO_NOTHING = 1e-9


class Lacr(EvictionPolicy):
    """Locality-aware cache replacement.

    history_weight  a in [0, 1]
    half_life       requests after which a hit counts half; infinite: plain LFU, as in the paper
    window          ranks of the queue that are looked at; None: all of it
    """

    name = "lacr"
    looks_ahead = True

    def __init__(
        self,
        history_weight: float = HISTORY_WEIGHT,
        half_life: float = inf,
        window: int | None = None,
    ) -> None:
        self.history_weight = history_weight
        # Never 0: next to nothing still breaks the ties of the other term.
        self._log2_history = log2(max(history_weight, NEXT_TO_NOTHING))
        self._log2_future = log2(max(1 - history_weight, NEXT_TO_NOTHING))
        self.half_life = half_life
        self.window = window
        self.rank: Mapping[Hashable, int] = {}
        self._num_requests = 0
        self._last_tick = -1

    def attach(self, tree: KVTree) -> None:
        self.rank = tree.rank

    def priority(self, node: Node) -> float:
        """log2 of the weighted sum times 2 ** (requests / half_life) times the requests seen.

        So scaled, what history adds does not change between two uses and what the queue adds
        only grows, which is what the tree asks of a policy.
        """
        history = self._log2_history + log2(max(node.hits, 1)) + node.worth / self.half_life
        if not node.waiters:
            return history
        rank, window = self.rank, self.window
        future = 0.0
        for waiter in node.waiters:
            place = rank[waiter]
            if window is None or place < window:
                future += 1.0 / (place + 1)
        if not future:
            return history
        requests = max(1.0, min(self._num_requests, 1.4427 * self.half_life))
        future = self._log2_future + log2(requests * future) + self._num_requests / self.half_life
        high, low = (future, history) if future > history else (history, future)
        return high + log2(1 + 2 ** max(low - high, -60.0))

    def note_use(self, node: Node, now: int) -> None:
        self.note_uses((node,), now)

    def note_uses(
        self, nodes: Sequence[Node], now: int, overheads: Mapping[Node, float] = NOTHING_AGAIN
    ) -> None:
        if now != self._last_tick:
            self._last_tick = now
            self._num_requests += 1
        worth = self._num_requests
        for node in nodes:
            node.worth = worth

    def note_insertion(self, node: Node, num_cached: int, num_computed: int) -> None:
        node.worth = self._num_requests
