# SPDX-License-Identifier: Apache-2.0
"""Orders of the waiting queue that gained nothing over LACR, so that servers do not offer them.

The simulator still measures them beside those of `depcache.plan.schedule`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from depcache.cache.tree import KVTree
from depcache.plan.look import look_up
from depcache.plan.schedule import MAX_PASSED, SCHEDULERS, ReorderingScheduler, Scheduler, Waiter

IntArray = NDArray[np.int64]


class _Count:
    """What the tree holds of a waiter.

    held     tokens, when they were counted
    version  of the tree then; -1 before
    gained   tokens that requests running since then may have added to them
    """

    __slots__ = ("gained", "held", "version")

    def __init__(self) -> None:
        self.held = 0
        self.version = -1
        self.gained = 0


class LongestDependencyMatch(ReorderingScheduler):
    """The request of which the tree holds the most tokens goes first.

    Counting what the tree holds of a request is O(its segments), so it is done for those only
    that can win. Between two counts a request gains at most what it shares with those that ran
    meanwhile (evictions take, they do not give). So old count + gain is a bound, and the best
    bound is counted again until the best is a count of now.
    Tokens that come into the tree in another way are seen at the next count.
    """

    name = "ldm"

    def __init__(self, tree: KVTree, *, max_passed: int = MAX_PASSED) -> None:
        super().__init__(tree, max_passed=max_passed)
        self._counts: dict[Hashable, _Count] = {}

    def _entered(self, waiter: Waiter) -> None:
        super()._entered(waiter)
        self._counts[waiter.name] = _Count()

    def _started(self, waiter: Waiter) -> None:
        del self._counts[waiter.name]
        shared = self._sharing.shared[waiter.row]
        for other in self._queue.values():
            self._counts[other.name].gained += int(shared[other.row])

    def _finished(self, waiter: Waiter) -> None:
        self._sharing.remove(waiter.row)

    def _left(self, waiter: Waiter) -> None:
        super()._left(waiter)
        del self._counts[waiter.name]

    def _prepare(self, waiters: Sequence[Waiter], rows: IntArray) -> None:
        self._scores = np.fromiter(map(self._score, waiters), np.float64, len(waiters))
        self._is_front = True

    def _score(self, waiter: Waiter) -> float:
        """The worth of a request, or a bound on it."""
        count = self._counts[waiter.name]
        if count.version == self.tree.version:
            return self._worth(waiter, count.held)
        if count.version < 0:
            return self._worth(waiter, waiter.table.task_start)
        return self._worth(waiter, min(count.held + count.gained, waiter.table.task_start))

    def _worth(self, waiter: Waiter, num_held: int) -> float:
        """What is maximized: grows with `num_held`, the tokens that the tree holds."""
        return num_held

    def _count(self, waiter: Waiter) -> None:
        root = self.tree.root(waiter.namespace)
        count = self._counts[waiter.name]
        count.held = look_up(self.tree, root, waiter.table, num_tiers=0).num_cached
        count.version = self.tree.version
        shared = self._sharing.shared[waiter.row]
        count.gained = sum(int(shared[other.row]) for other in self._running.values())

    def _pick(self, waiters: Sequence[Waiter], waiting: NDArray[np.bool_]) -> int:
        while True:
            best = int(np.where(waiting, self._scores, -1).argmax())
            waiter = waiters[best]
            if not self._is_front or self._counts[waiter.name].version == self.tree.version:
                return best
            self._count(waiter)
            self._scores[best] = self._score(waiter)

    def _picked(self, rows: IntArray, number: int) -> None:
        self._is_front = False


class AgedDependencyMatch(LongestDependencyMatch):
    """The share of a request that the tree holds, plus the share of its patience that is used.

    A request that is passed over again and again keeps its look-ahead entries in the tree and
    what they protect; so the one that nobody would pick rises until it equals a full hit.
    """

    name = "ldm_aged"

    def _worth(self, waiter: Waiter, num_held: int) -> float:
        return num_held / max(1, waiter.table.task_start) + waiter.passed / max(1, self.max_passed)


ORDERS: dict[str, type[Scheduler]] = {
    **SCHEDULERS,
    **{cls.name: cls for cls in (LongestDependencyMatch, AgedDependencyMatch)},
}
"""Every order that the simulator knows, by name."""
