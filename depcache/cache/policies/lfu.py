# SPDX-License-Identifier: Apache-2.0
"""Least frequently used: the fewest hits go first; ties fall to the older entry."""

from __future__ import annotations

from depcache.cache.node import Node
from depcache.cache.policies.base import EvictionPolicy


class Lfu(EvictionPolicy):
    """Counts uses since the KV was computed, as SGLang's `lfu` does."""

    name = "lfu"

    def priority(self, node: Node) -> float:
        return node.hits
