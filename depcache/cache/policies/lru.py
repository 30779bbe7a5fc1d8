# SPDX-License-Identifier: Apache-2.0
"""Least recently used: the oldest last use goes first."""

from __future__ import annotations

from depcache.cache.node import Node
from depcache.cache.policies.base import EvictionPolicy


class Lru(EvictionPolicy):
    """Counts a use when the request starts to run."""

    name = "lru"

    def priority(self, node: Node) -> float:
        return node.last_use
