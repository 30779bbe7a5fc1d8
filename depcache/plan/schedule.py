# SPDX-License-Identifier: Apache-2.0
"""In which order waiting requests run: first come, most cached, or most shared.

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
from depcache.plan.look import look_up
from depcache.plan.segments import SegmentTable
from depcache.plan.sharing import Sharing

MAX_PASSED = 64
"""Default bound on how often a request is passed over."""

FCFS = "fcfs"

IntArray = NDArray[np.int64]


class _Waiter:
    """A waiting or running request.

    row      its row in `Sharing`
    passed   requests that came later and were started before it
    version  of the tree when `held` was counted; -1 before
    held     its tokens that the tree held at that time
    gained   tokens that requests running since then may have added to them
    """

    __slots__ = ("gained", "held", "name", "namespace", "passed", "row", "table", "version")

    def __init__(self, name: Hashable, namespace: Hashable, table: SegmentTable) -> None:
        self.name = name
        self.namespace = namespace
        self.table = table
        self.row = -1
        self.passed = 0
        self.version = -1
        self.held = 0
        self.gained = 0


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
        self._queue: dict[Hashable, _Waiter] = {}  # in order of arrival
        self._running: dict[Hashable, _Waiter] = {}

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
        waiter = self._queue[name] = _Waiter(name, namespace, table)
        self._entered(waiter)

    def start(self, name: Hashable, matched: Sequence[int] | None = None) -> None:
        """A waiting request begins to run; those that came before it are passed over.

        matched  as in its `RequestPlan`: it will add nothing to the tree but the rest
        """
        for waiter in self._queue.values():
            if waiter.name == name:
                break
            waiter.passed += 1
        waiter = self._running[name] = self._queue.pop(name)
        self._started(waiter, matched)

    def finish(self, name: Hashable) -> None:
        """A request that was started adds nothing more to the tree: cached, ended or aborted."""
        self._finished(self._running.pop(name))

    def leave(self, name: Hashable) -> None:
        """A waiting request was withdrawn."""
        self._left(self._queue.pop(name))

    def order(self, num_next: int = 1) -> list[Hashable]:
        """All waiting requests, the one to run first at the front. Changes no order itself.

        num_next  how many from the front must be right; behind them a scheduler may use what
                  it knew last
        """
        return list(self._queue)

    # What a scheduler that reorders does at these moments.

    def _entered(self, waiter: _Waiter) -> None: ...

    def _started(self, waiter: _Waiter, matched: Sequence[int] | None) -> None: ...

    def _finished(self, waiter: _Waiter) -> None: ...

    def _left(self, waiter: _Waiter) -> None: ...


class _Reordering(Scheduler, ABC):
    """Picks one after another by a score, overdue requests first."""

    def __init__(self, tree: KVTree, *, max_passed: int = MAX_PASSED) -> None:
        super().__init__(tree, max_passed=max_passed)
        self._sharing = Sharing()

    def _entered(self, waiter: _Waiter) -> None:
        waiter.row = self._sharing.add(waiter.namespace, waiter.table)

    def _left(self, waiter: _Waiter) -> None:
        self._sharing.remove(waiter.row)

    def order(self, num_next: int = 1) -> list[Hashable]:
        waiters = list(self._queue.values())
        num = len(waiters)
        passed = np.fromiter((w.passed for w in waiters), np.int64, num)
        rows = np.fromiter((w.row for w in waiters), np.int64, num)
        waiting = np.ones(num, bool)
        self._prepare(waiters, rows)
        ordered: list[Hashable] = []
        for number in range(num):
            overdue = waiting & (passed >= self.max_passed)
            first = int(overdue.argmax())
            if not overdue[first]:
                first = self._pick(waiters, waiting, is_exact=number < num_next)
            self._picked(rows, first)
            waiting[first] = False
            passed[:first] += 1
            ordered.append(waiters[first].name)
        return ordered

    def _prepare(self, waiters: Sequence[_Waiter], rows: IntArray) -> None:
        """Before the first pick of an order."""

    @abstractmethod
    def _pick(self, waiters: Sequence[_Waiter], waiting: NDArray[np.bool_], is_exact: bool) -> int:
        """Index of the one to take among `waiting`; ties fall to the one that came first."""

    def _picked(self, rows: IntArray, number: int) -> None:
        """Index `number` was taken."""


class LongestDependencyMatch(_Reordering):
    """The request of which the tree holds the most tokens goes first.

    Counting what the tree holds of a request is O(its segments), so it is done for those only
    that can win. Between two counts a request gains at most what it shares with the missed
    tokens of those that ran meanwhile (evictions take, they do not give). So old count + gain
    is a bound, and the best bound is counted again until the best is a count of now.
    Tokens that come into the tree in another way are seen at the next count.
    """

    name = "ldm"

    def _started(self, waiter: _Waiter, matched: Sequence[int] | None) -> None:
        if matched is None:
            gains = self._sharing.shared[waiter.row]
        else:
            gains = self._sharing.count_missing(waiter.namespace, waiter.table, matched)
        for other in self._queue.values():
            other.gained += int(gains[other.row])

    def _finished(self, waiter: _Waiter) -> None:
        self._sharing.remove(waiter.row)

    def _prepare(self, waiters: Sequence[_Waiter], rows: IntArray) -> None:
        self._scores = np.fromiter(map(self._score, waiters), np.float64, len(waiters))

    def _score(self, waiter: _Waiter) -> float:
        """The worth of a request, or a bound on it."""
        if waiter.version == self.tree.version:
            return self._worth(waiter, waiter.held)
        if waiter.version < 0:
            return self._worth(waiter, waiter.table.task_start)
        return self._worth(waiter, min(waiter.held + waiter.gained, waiter.table.task_start))

    def _worth(self, waiter: _Waiter, num_held: int) -> float:
        """What is maximized: grows with `num_held`, the tokens that the tree holds."""
        return num_held

    def _count(self, waiter: _Waiter) -> None:
        root = self.tree.root(waiter.namespace)
        waiter.held = look_up(root, waiter.table, lowest="device").num_cached
        waiter.version = self.tree.version
        shared = self._sharing.shared[waiter.row]
        waiter.gained = sum(int(shared[other.row]) for other in self._running.values())

    def _pick(self, waiters: Sequence[_Waiter], waiting: NDArray[np.bool_], is_exact: bool) -> int:
        while True:
            best = int(np.where(waiting, self._scores, -1).argmax())
            waiter = waiters[best]
            if not is_exact or waiter.version == self.tree.version:
                return best
            self._count(waiter)
            self._scores[best] = self._score(waiter)


class AgedDependencyMatch(LongestDependencyMatch):
    """The share of a request that the tree holds, plus the share of its patience that is used.

    A request that is passed over again and again keeps its look-ahead entries in the tree and
    what they protect; so the one that nobody would pick rises until it equals a full hit. In
    the simulator this adds to LACR where `ldm` does not.
    """

    name = "ldm_aged"

    def _worth(self, waiter: _Waiter, num_held: int) -> float:
        return num_held / max(1, waiter.table.task_start) + waiter.passed / max(1, self.max_passed)


class LongestSharedPrefix(_Reordering):
    """Requests that share trees run one after another, as BatchLLM groups shared prefixes.

    Next is the one that shares the most tokens with the request before it; among equals (where
    none shares more than the system) the one that shares the most with all that wait, summed.
    What the tree holds plays no part.
    """

    name = "lsp"

    def __init__(self, tree: KVTree, *, max_passed: int = MAX_PASSED) -> None:
        super().__init__(tree, max_passed=max_passed)
        self._last: _Waiter | None = None  # started last; it stays a member until the next

    def _started(self, waiter: _Waiter, matched: Sequence[int] | None) -> None:
        if self._last is not None:
            self._sharing.remove(self._last.row)
        self._last = waiter

    def _prepare(self, waiters: Sequence[_Waiter], rows: IntArray) -> None:
        self._shared = self._sharing.shared[np.ix_(rows, rows)]
        self._to_rest = self._shared.sum(axis=1) - self._shared.diagonal()
        self._to_last = np.zeros(len(rows), np.int64)
        if self._last is not None:
            self._to_last = self._sharing.shared[self._last.row, rows]

    def _pick(self, waiters: Sequence[_Waiter], waiting: NDArray[np.bool_], is_exact: bool) -> int:
        to_last = np.where(waiting, self._to_last, -1)
        is_best = to_last == to_last.max()
        return int(np.where(is_best, self._to_rest, -1).argmax())

    def _picked(self, rows: IntArray, number: int) -> None:
        self._to_last = self._shared[number]
        self._to_rest -= self._shared[number]


SCHEDULERS: dict[str, type[Scheduler]] = {
    cls.name: cls
    for cls in (Scheduler, LongestDependencyMatch, AgedDependencyMatch, LongestSharedPrefix)
}


def make_scheduler(name: str, tree: KVTree, *, max_passed: int = MAX_PASSED) -> Scheduler:
    """The scheduler called `name`; ConfigError lists the choices."""
    if name not in SCHEDULERS:
        choices = ", ".join(SCHEDULERS)
        raise ConfigError(f"unknown scheduler {shorten(name)}: choose one of {choices}")
    return SCHEDULERS[name](tree, max_passed=max_passed)
