# SPDX-License-Identifier: Apache-2.0
"""Greedy-Dual-Size-Frequency: hits times cost per size, on a clock that ages what is not used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depcache.cache.node import Node
from depcache.cache.policies.base import EvictionPolicy

if TYPE_CHECKING:
    from depcache.cache.tree import KVTree

# A token's attention over this many tokens before it costs as much as the rest of its layers:
# 16 e9 / (4 * 32 layers * 4096 channels) operations of an 8B model, rounded.
TOKENS_OF_EQUAL_COST = 30_000


class Gdsf(EvictionPolicy):
    """Priority = clock + hits * cost / size, the clock being the priority of the last victim.

    The cost of a token is that of computing it behind its prefix; costs and sizes of a node
    are sums over its tokens. Cherkasova, "Improving WWW Proxies Performance with
    Greedy-Dual-Size-Frequency Caching Policy", 1998. `worth` holds the clock at the last use.
    """

    name = "gdsf"
    weighs_size = True

    def __init__(self) -> None:
        self._clock = 0.0

    def attach(self, tree: KVTree) -> None:
        self._clock = 0.0

    def priority(self, node: Node) -> float:
        return node.worth + node.hits * self.cost_per_token(node)

    def cost_per_token(self, node: Node) -> float:
        return 1.0 + (node.home + node.num_tokens / 2) / TOKENS_OF_EQUAL_COST

    def note_use(self, node: Node, now: int) -> None:
        node.worth = self._clock

    def note_insertion(self, node: Node, num_cached: int, num_computed: int) -> None:
        node.worth = self._clock

    def note_eviction(self, priority: float) -> None:
        self._clock = priority
