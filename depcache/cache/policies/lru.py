# SPDX-License-Identifier: Apache-2.0
"""Least recently used: the oldest last use goes first."""

from __future__ import annotations

from depcache.cache.node import Node


class Lru:
    """Contract: `EvictionPolicy`."""

    name = "lru"

    def priority(self, node: Node) -> float:
        return node.last_use
