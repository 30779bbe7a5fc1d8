# SPDX-License-Identifier: Apache-2.0
"""Least worth: a use counts the more, the less of a row had to be computed again (Cache-Craft)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from depcache.cache.node import Node
from depcache.cache.policies.base import NOTHING_AGAIN, EvictionPolicy
from depcache.select.cachecraft import worth_of_use

FULL_USE = worth_of_use(0.0)


class Cfo(EvictionPolicy):
    """Each use adds 1 / CFO, 100 at most and for a use of which nothing is computed again.

    Cache-Craft, section 3.4. Without requests of the selector `stored` it is `lfu`. `worth` holds
    what uses were short of a full one.
    """

    name = "cfo"

    def priority(self, node: Node) -> float:
        return FULL_USE * node.hits - node.worth

    def note_uses(
        self, nodes: Sequence[Node], now: int, overheads: Mapping[Node, float] = NOTHING_AGAIN
    ) -> None:
        for node in nodes if overheads else ():
            node.worth += FULL_USE - worth_of_use(overheads.get(node, 0.0))

    def note_insertion(self, node: Node, num_cached: int, num_computed: int) -> None:
        node.worth = 0.0
