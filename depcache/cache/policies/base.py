# SPDX-License-Identifier: Apache-2.0
"""The contract of an eviction policy: one number per node, the smallest goes first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from depcache.cache.node import Node

if TYPE_CHECKING:
    from depcache.cache.tree import KVTree

NOTHING_AGAIN: Mapping[Node, float] = MappingProxyType({})


class EvictionPolicy(ABC):
    """Orders evictable leaves; the tree sees to it that only unlocked leaves go.

    A node is valued when it becomes evictable; `hits`, `last_use` and `worth` change only while
    it is locked. If requests wait for it, it is valued again when it is about to go: until then
    its worth may grow, not shrink. The tree sees to those that a waiting request gives up.
    """

    name: ClassVar[str]

    weighs_size: ClassVar[bool] = False
    """Whether the number of a node's tokens matters for its worth."""

    looks_ahead: ClassVar[bool] = False
    """Whether it wants to know the waiting requests (`Node.waiters`)."""

    def attach(self, tree: KVTree) -> None:
        """Called once, by the tree that the policy serves."""

    @abstractmethod
    def priority(self, node: Node) -> float:
        """Worth of keeping `node`; the smallest is evicted first. Does not modify the node."""

    def note_use(self, node: Node, now: int) -> None:
        """A request uses `node`, at tick `now`. `hits` and `last_use` are not yet updated."""

    def note_uses(
        self, nodes: Sequence[Node], now: int, overheads: Mapping[Node, float] = NOTHING_AGAIN
    ) -> None:
        """`note_use` of each of them: a request uses hundreds at once.

        overheads  share of a node that is computed again all the same, 0 where it is not named
        """
        for node in nodes:
            self.note_use(node, now)

    def note_insertion(self, node: Node, num_cached: int, num_computed: int) -> None:
        """The KV of `node` was computed in a request that found `num_cached` tokens cached.

        num_computed  tokens that the request computed; both are 0 where it is not known
        """

    def note_eviction(self, priority: float) -> None:
        """A node of this worth was evicted."""
