# SPDX-License-Identifier: Apache-2.0
"""Least worth: a use counts the more, the less of a row had to be computed again (Cache-Craft)."""

from __future__ import annotations

from collections.abc import Mapping

from depcache.cache.node import Node
from depcache.cache.policies.base import EvictionPolicy
from depcache.select.cachecraft import worth_of_use


class Cfo(EvictionPolicy):
    """Each use adds 1 / CFO, 100 at most and for a use of which nothing is computed again.

    Cache-Craft, section 3.4. Without requests of the selector `stored` it is `lfu`.
    """

    name = "cfo"

    def __init__(self) -> None:
        self._overheads: Mapping[Node, float] = {}

    def priority(self, node: Node) -> float:
        return node.worth

    def note_overheads(self, overheads: Mapping[Node, float]) -> None:
        self._overheads = overheads

    def note_use(self, node: Node, now: int) -> None:
        node.worth += worth_of_use(self._overheads.get(node, 0.0))
