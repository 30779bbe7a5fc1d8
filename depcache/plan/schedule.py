# SPDX-License-Identifier: Apache-2.0
"""In which order waiting requests run: first come, most shared, or least different.

Pure host code, used by the server and by the simulator. The caller reports what happens to a
request (`enter`, then `start` and `finish`, or `leave`) and asks for the order before it admits.
No request waits for ever: once `max_passed` later ones were started before it, it goes first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from depcache.cache.tree import KVTree
from depcache.errors import ConfigError, shorten
from depcache.plan.pieces import Pieces
from depcache.plan.segments import SegmentTable
from depcache.plan.sharing import Sharing

MAX_PASSED = 64
"""Default bound on how often a request is passed over."""

FCFS = "fcfs"

IntArray = NDArray[np.int64]


class Waiter:
    """A waiting or running request.

    row     its row in the scheduler's `Sharing` or `Pieces`
    passed  requests that came later and were started before it
    """

    __slots__ = ("name", "namespace", "passed", "row", "table")

    def __init__(self, name: Hashable, namespace: Hashable, table: SegmentTable) -> None:
        self.name = name
        self.namespace = namespace
        self.table = table
        self.row = -1
        self.passed = 0


class Scheduler:
    """First come, first served; and what all schedulers have in common.

    tree        whose content decides; read, never changed
    max_passed  a request is passed over at most this often; 0 keeps the order of arrival
    """

    name = FCFS

    def __init__(self, tree: KVTree, *, max_passed: int = MAX_PASSED) -> None:
        if max_passed < 0:
            raise ConfigError(f"max_passed is {shorten(max_passed)}: choose at least 0")
        self.tree = tree
        self.max_passed = max_passed
        self._queue: dict[Hashable, Waiter] = {}  # in order of arrival
        self._running: dict[Hashable, Waiter] = {}

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._queue)

    def enter(self, name: Hashable, namespace: Hashable, table: SegmentTable) -> None:
        """A request begins to wait, behind all others. One that was put back enters anew.

        name       any key, unique among the requests that wait or run
        namespace  as for `KVTree.root`: only requests of one namespace share anything
        """
        if name in self._queue or name in self._running:
            raise ValueError(f"request {shorten(name)} waits or runs already")
        waiter = self._queue[name] = Waiter(name, namespace, table)
        self._entered(waiter)

    def start(self, name: Hashable) -> None:
        """A waiting request begins to run; those that came before it are passed over."""
        for waiter in self._queue.values():
            if waiter.name == name:
                break
            waiter.passed += 1
        waiter = self._running[name] = self._queue.pop(name)
        self._started(waiter)

    def finish(self, name: Hashable) -> None:
        """A request that was started adds nothing more to the tree: cached, ended or aborted."""
        self._finished(self._running.pop(name))

    def leave(self, name: Hashable) -> None:
        """A waiting request was withdrawn."""
        self._left(self._queue.pop(name))

    def order(self) -> list[Hashable]:
        """All waiting requests, the one to run first at the front. Changes no order itself.

        The front is right; behind it a scheduler may use what it knew last.
        """
        return list(self._queue)

    # What a scheduler that reorders does at these moments.

    def _entered(self, waiter: Waiter) -> None: ...

    def _started(self, waiter: Waiter) -> None: ...

    def _finished(self, waiter: Waiter) -> None: ...

    def _left(self, waiter: Waiter) -> None: ...


class ReorderingScheduler(Scheduler, ABC):
    """Picks one after another by a score, overdue requests first. For orders of one's own.

    members  what is counted that requests have in common
    """

    members: type[Sharing | Pieces] = Sharing

    def __init__(self, tree: KVTree, *, max_passed: int = MAX_PASSED) -> None:
        super().__init__(tree, max_passed=max_passed)
        self._sharing = self.members()

    def _entered(self, waiter: Waiter) -> None:
        waiter.row = self._sharing.add(waiter.namespace, waiter.table)

    def _left(self, waiter: Waiter) -> None:
        self._sharing.remove(waiter.row)

    def order(self) -> list[Hashable]:
        waiters = list(self._queue.values())
        num = len(waiters)
        passed = np.fromiter((w.passed for w in waiters), np.int64, num)
        rows = np.fromiter((w.row for w in waiters), np.int64, num)
        waiting = np.ones(num, bool)
        self._prepare(waiters, rows)
        ordered: list[Hashable] = []
        for _ in range(num):
            overdue = waiting & (passed >= self.max_passed)
            first = int(overdue.argmax())
            if not overdue[first]:
                first = self._pick(waiters, waiting)
            self._picked(rows, first)
            waiting[first] = False
            passed[:first] += 1
            ordered.append(waiters[first].name)
        return ordered

    def _prepare(self, waiters: Sequence[Waiter], rows: IntArray) -> None:
        """Called before the first pick of an order."""

    @abstractmethod
    def _pick(self, waiters: Sequence[Waiter], waiting: NDArray[np.bool_]) -> int:
        """Index of the one to take among `waiting`; ties fall to the one that came first."""

    def _picked(self, rows: IntArray, number: int) -> None:
        """Index `number` was taken."""


class FollowingScheduler(ReorderingScheduler):
    """Compares with the request before it: the one picked last, at first the one started last."""

    def __init__(self, tree: KVTree, *, max_passed: int = MAX_PASSED) -> None:
        super().__init__(tree, max_passed=max_passed)
        self._last: Waiter | None = None  # started last; it stays a member until the next

    def _started(self, waiter: Waiter) -> None:
        if self._last is not None:
            self._sharing.remove(self._last.row)
        self._last = waiter

    def _prepare(self, waiters: Sequence[Waiter], rows: IntArray) -> None:
        self._shared = self._sharing.shared[np.ix_(rows, rows)]
        self._to_last: IntArray | None = None
        if self._last is not None:
            self._to_last = self._sharing.shared[self._last.row, rows]

    def _picked(self, rows: IntArray, number: int) -> None:
        self._to_last = self._shared[number]


class LongestSharedPrefix(FollowingScheduler):
    """Requests that share trees run one after another, as BatchLLM groups shared prefixes.

    Next is the one that shares the most tokens with the request before it; among equals (where
    none shares more than the system) the one that shares the most with all that wait, summed.
    What the tree holds plays no part.
    """

    name = "lsp"

    def _prepare(self, waiters: Sequence[Waiter], rows: IntArray) -> None:
        super()._prepare(waiters, rows)
        self._to_rest = self._shared.sum(axis=1) - self._shared.diagonal()

    def _pick(self, waiters: Sequence[Waiter], waiting: NDArray[np.bool_]) -> int:
        to_last = np.zeros(len(waiters), np.int64) if self._to_last is None else self._to_last
        to_last = np.where(waiting, to_last, -1)
        is_best = to_last == to_last.max()
        return int(np.where(is_best, self._to_rest, -1).argmax())

    def _picked(self, rows: IntArray, number: int) -> None:
        super()._picked(rows, number)
        self._to_rest -= self._shared[number]


class LeastDifference(FollowingScheduler):
    """The order of TableCache (section 4.2.1): the request that differs in the fewest tables.

    Next is the one with the fewest pieces that it or the request before it has and the other has
    not, however long they are: so a request with few pieces is near to every other. The paper takes
    the first one of a batch at random; here it is the oldest, and a batch never ends.
    """

    name = "xor"
    members = Pieces

    def _pick(self, waiters: Sequence[Waiter], waiting: NDArray[np.bool_]) -> int:
        if self._to_last is None:
            return int(waiting.argmax())
        # The pieces of the request before are the same for all: they decide nothing.
        distance = self._shared.diagonal() - 2 * self._to_last
        return int(np.where(waiting, distance, np.iinfo(np.int64).max).argmin())


SCHEDULERS: dict[str, type[Scheduler]] = {
    cls.name: cls for cls in (Scheduler, LongestSharedPrefix, LeastDifference)
}


def make_scheduler(name: str, tree: KVTree, *, max_passed: int = MAX_PASSED) -> Scheduler:
    """The scheduler called `name`; ConfigError lists the choices."""
    if name not in SCHEDULERS:
        choices = ", ".join(SCHEDULERS)
        raise ConfigError(f"unknown scheduler {shorten(name)}: choose one of {choices}")
    return SCHEDULERS[name](tree, max_passed=max_passed)
