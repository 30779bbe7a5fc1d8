# SPDX-License-Identifier: Apache-2.0
"""First in, first out: the KV that was put in first goes first."""

from __future__ import annotations

from depcache.cache.node import Node
from depcache.cache.policies.base import EvictionPolicy


class Fifo(EvictionPolicy):
    """Uses do not matter."""

    name = "fifo"

    def priority(self, node: Node) -> float:
        return node.born
