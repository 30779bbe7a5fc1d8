# SPDX-License-Identifier: Apache-2.0
"""The contract of an eviction policy: one number per node, the smallest goes first."""

from __future__ import annotations

from typing import Protocol

from depcache.cache.node import Node


class EvictionPolicy(Protocol):
    """Orders evictable leaves. Called only for unlocked leaves, when they become evictable.

    A node's `hits` and `last_use` change only while it is locked, so the number computed
    at the moment of unlocking stays right until the node is used again.
    """

    name: str

    def priority(self, node: Node) -> float:
        """Worth of keeping `node`; the smallest is evicted first. Does not modify the node."""
        ...
