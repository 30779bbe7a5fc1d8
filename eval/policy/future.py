# SPDX-License-Identifier: Apache-2.0
"""What a policy may know of requests to come: nothing, the queue, or everything."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from depcache.cache.tree import KVTree
from depcache.plan.segments import SegmentTable
from eval.policy.policies import OFFLINE

LOOKAHEAD = "depcache.plan.lookahead"


class Future(Protocol):
    """Told of the queue as it changes."""

    def enter(self, number: int) -> None: ...

    def leave(self, number: int) -> None: ...

    def set_order(self, numbers: Sequence[Hashable]) -> None: ...


class NoFuture:
    """For policies that look back only."""

    def enter(self, number: int) -> None: ...

    def leave(self, number: int) -> None: ...

    def set_order(self, numbers: Sequence[Hashable]) -> None: ...


class QueueFuture:
    """The waiting queue, in the scheduler's order."""

    def __init__(self, tree: KVTree, namespace: Hashable, tables: Sequence[SegmentTable]) -> None:
        module = importlib.import_module(LOOKAHEAD)
        self._lookahead: Any = module.Lookahead(tree)
        self._namespace = namespace
        self._tables = tables

    def enter(self, number: int) -> None:
        self._lookahead.enter(number, self._namespace, self._tables[number])

    def leave(self, number: int) -> None:
        self._lookahead.leave(number)

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


def has_lookahead() -> bool:
    """Whether this version of the cache can look ahead."""
    return importlib.util.find_spec(LOOKAHEAD) is not None


def make_future(tree: KVTree, namespace: Hashable, tables: Sequence[SegmentTable]) -> Future:
    """What the policy of `tree` may know."""
    if not getattr(tree.policy, "looks_ahead", False) or not has_lookahead():
        return NoFuture()
    kind = WholeFuture if tree.policy.name == OFFLINE else QueueFuture
    return kind(tree, namespace, tables)
