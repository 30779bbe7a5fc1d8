# SPDX-License-Identifier: Apache-2.0
"""Belady's rule: what is used again last goes first. Needs the future; a bound, not a policy."""

from __future__ import annotations

from math import inf

from depcache.cache.node import Node
from depcache.cache.policies.base import EvictionPolicy


class Belady(EvictionPolicy):
    """For the simulator, which writes all requests to come on the nodes (`Node.waiters`).

    Waiters are the requests' numbers in the order in which they run. Belady's MIN under the
    tree's own rule, leaves first and whole nodes.
    """

    name = "belady"
    looks_ahead = True

    def priority(self, node: Node) -> float:
        # They enter in order, so the first is the next use. Numbers do not move with the queue's
        # head: a node that was offered long ago is still comparable.
        if not node.waiters:
            return -inf
        number = next(iter(node.waiters))
        assert isinstance(number, int)
        return -number
