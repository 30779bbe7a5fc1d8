# SPDX-License-Identifier: Apache-2.0
"""What a policy may know of requests to come: nothing, the queue, or everything."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from depcache.cache.tree import KVTree
from depcache.plan.lookahead import Lookahead
from depcache.plan.segments import SegmentTable
from eval.policy.policies import OFFLINE


class Future(Protocol):
    """Told of the queue as it changes."""

    def enter(self, number: int) -> None: ...

    def leave(self, number: int) -> None: ...

    def set_order(self, numbers: Sequence[Hashable]) -> None: ...


class NoFuture:
    """Nothing is known: for policies that look back only."""

    def enter(self, number: int) -> None: ...

    def leave(self, number: int) -> None: ...

    def set_order(self, numbers: Sequence[Hashable]) -> None: ...


class QueueFuture:
    """The waiting queue, in the scheduler's order."""

    def __init__(self, tree: KVTree, namespace: Hashable, tables: Sequence[SegmentTable]) -> None:
        self._lookahead = Lookahead(tree)
        self._namespace = namespace
        self._tables = tables

    def enter(self, number: int) -> None:
        self._lookahead.enter(number, self._namespace, self._tables[number])

    def leave(self, number: int) -> None:
        self._lookahead.leave(number, is_running=True)

    def set_order(self, numbers: Sequence[Hashable]) -> None:
        self._lookahead.set_order(numbers)


class WholeFuture(QueueFuture):
    """All requests from the start, in their order of arrival, whatever the scheduler does."""

    def __init__(self, tree: KVTree, namespace: Hashable, tables: Sequence[SegmentTable]) -> None:
        super().__init__(tree, namespace, tables)
        for number in range(len(tables)):
            super().enter(number)
        super().set_order(range(len(tables)))

    def enter(self, number: int) -> None: ...

    def set_order(self, numbers: Sequence[Hashable]) -> None: ...


def make_future(
    policy: str, tree: KVTree, namespace: Hashable, tables: Sequence[SegmentTable]
) -> Future:
    """What `policy`, which `tree` has, may know."""
    if not tree.policy.looks_ahead:
        return NoFuture()
    kind = WholeFuture if policy == OFFLINE else QueueFuture
    return kind(tree, namespace, tables)
