# SPDX-License-Identifier: Apache-2.0
"""Tier DISK of a server with several ranks: each has a disk tier, and all know the same of it.

Disks are not equally fast and fail alone. What the caches of the ranks are told must be the same,
so an operation is over when it is over on every rank, it has failed when it failed on one, and a
value is there when all ranks have their part of it. They agree on this in `agree`, in passes of the
scheduler, and nothing is told in between. What neighbours do is heard when all ranks have heard it:
see `parts`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

from sglang_patches.ranks import RankGroup
from sglang_patches.tiers.disk.checked import Outcome
from sglang_patches.tiers.disk.fingerprint import Fingerprint
from sglang_patches.tiers.disk.lane import Job, Lane
from sglang_patches.tiers.disk.manifest import Known
from sglang_patches.tiers.disk.operation import Finished, Operation
from sglang_patches.tiers.disk.parts import Parts, name_of, records_of
from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.disk.value import DiskRef, Entry
from sglang_patches.tiers.disk.values import Heard

logger = logging.getLogger("depcache")

# How bad an outcome is, the worst of all ranks counts: a failure that says nothing of the storage
# is less bad than one that does, and a value that is gone is given up everywhere.
_OK, _UNTOLD, _FAILED, _GONE = range(4)
_ELSEWHERE = "other_rank"
_OURS, _BORROWED = b"=", b"+"
_NS = 1_000_000_000


class RankedDiskTier(DiskTier):
    """The disk tier of one rank. All ranks make the same calls in the same order.

    capacity_bytes  of this rank

    A value of which one rank has no part is deleted by the others, when the tier opens and when a
    read fails. Where one rank cannot open its folder the tier is off, and all values stay.

    A neighbour's value is known when every rank has heard of its part, and no longer when one has
    heard that it is gone. Of a neighbour that has ended, a value is ours when every rank has taken
    over its part; until then a part that one rank has taken over counts against its room.
    """

    def __init__(
        self,
        group: RankGroup,
        fingerprint: Fingerprint,
        folder: str | Path,
        capacity_bytes: int,
        **more: Any,
    ) -> None:
        """more: as for `DiskTier`. Raises ConfigError as it does."""
        super().__init__(fingerprint, folder, capacity_bytes, **more)
        self._group = group
        self._under_way: dict[str, deque[Job]] = {"store": deque(), "load": deque()}
        self._over: set[Job] = set()
        self._is_broken = False
        self._parts = Parts(group.rank, group.size)
        self._heard = Heard([])
        self._agreed_s = 0.0
        self._agree_on_room([])

    def now(self) -> float:
        """Seconds, when the ranks last agreed."""
        return self._agreed_s

    @property
    def is_off(self) -> bool:
        """Whether the storage is left alone, because it keeps failing or a rank has none."""
        return self._is_broken or super().is_off

    @property
    def free_bytes(self) -> int:
        """Bytes that every rank can still store: what was agreed, less what was begun since."""
        return self._free_then - (self._values.used_bytes - self._used_then)

    def entries(self) -> Iterator[tuple[Entry, DiskRef]]:
        """Every value that all ranks have, in the order of the first; waits for all."""
        # One that is ours on one rank, and a neighbour's on another, has two names: of no use.
        mine = {
            (name_of(entry), _OURS if self.owns(ref) else _BORROWED): (entry, ref)
            for entry, ref in super().entries()
        }
        is_open = self._checked.manifest is not None
        told = self._group.gather(b"".join(chain(*mine)) if is_open else None)
        lists = [list(records_of(names)) for names in told if names is not None]
        if len(lists) < len(told):
            if not self._is_broken:
                logger.warning("disk tier: a rank cannot open its folder: it is not used")
            self._is_broken = True
            self._values.clear()
            return iter(())
        everywhere = set(lists[0]).intersection(*lists[1:])
        borrowed: list[Known] = []
        for each, (entry, ref) in mine.items():
            value = self._values[ref.key]
            if not value.is_ours:
                borrowed.append(Known(ref.key, entry, value.num_bytes, is_ours=False))
            if each not in everywhere:
                self._remove(ref.key, value)
        self._parts.begin(
            borrowed, [[name for name, whose in names if whose == _BORROWED] for names in lists]
        )
        return iter([mine[each] for each in lists[0] if each in everywhere])

    def hear(self) -> Heard:
        """What neighbours have done on all ranks, as far as they have agreed. Does not block."""
        heard, self._heard = self._heard, Heard([])
        return heard

    def poll(self) -> list[Finished]:
        """Operations that ended on all ranks, as far as they have agreed. Does not block."""
        finished, self._done = self._done, []
        return finished

    def agree(self) -> None:
        """Conclude what has ended on all ranks; waits for them."""
        for job in (*self._writes.poll(), *self._reads.poll()):
            tag: Operation = job.tag
            if tag.kind == "delete":
                self._end(job, Outcome.of(job))
            else:
                self._over.add(job)
        if not self._is_broken:  # a rank without a folder hears nothing, so nothing comes of it
            self._parts.hear(self._neighbours.poll())
        waiting = self._under_way.values()
        numbers = [sum(1 for _ in takewhile(self._over.__contains__, jobs)) for jobs in waiting]
        *numbers, num_news = self._agree_on_room([*numbers, -self._parts.num_news])
        if num_news < 0:
            self._hear_together()
        jobs = [
            each.popleft()
            for each, number in zip(waiting, numbers, strict=True)
            for _ in range(number)
        ]
        if not jobs:
            return
        worst = self._group.highest([self._badness(job) for job in jobs])
        for job, badness in zip(jobs, worst, strict=True):
            self._over.discard(job)
            finished = self._conclude_for_all(job, badness)
            if finished is not None:
                self._done.append(finished)

    # -- what ranks tell each other --------------------------------------------------------------

    def _hear_together(self) -> None:
        told = self._group.gather(self._parts.tell())
        used = self._values.used_bytes
        changes = self._parts.follow([news or b"" for news in told])
        self._heard += self._values.hear(changes, self._storing)
        # What was taken over had counted against the room that was agreed on.
        self._used_then += self._values.used_bytes - used

    def _agree_on_room(self, numbers: list[int]) -> list[int]:
        """The lowest of each number; with them go time and room, so that it takes one message."""
        now = int(super().now() * _NS)
        free = super().free_bytes - self._parts.inherited_bytes
        *numbers, now, free = self._group.lowest([*numbers, now, free])
        self._agreed_s = now / _NS
        self._free_then, self._used_then = free, self._values.used_bytes
        return numbers

    def _badness(self, job: Job) -> int:
        outcome = Outcome.of(job)
        if outcome.is_gone:
            return _GONE
        if not outcome.is_failure:
            return _OK
        return _FAILED if self._is_telling(job) else _UNTOLD

    def _conclude_for_all(self, job: Job, worst: int) -> Finished | None:
        outcome = Outcome.of(job)
        ours = self._badness(job)
        if ours < worst:
            self._give_up_part(job.tag, ours, worst)
            outcome = Outcome(_ELSEWHERE, is_gone=worst == _GONE)
        if worst == _FAILED:
            self._breaker.fail(f"{outcome.reason}, {outcome.detail or 'on another rank'}")
        elif worst != _UNTOLD:
            self._breaker.succeed()
        return self._end(job, outcome)

    def _give_up_part(self, tag: Operation, ours: int, worst: int) -> None:
        """Delete what this rank has of a value that another rank has not."""
        value = self._values.get(tag.key)
        if tag.kind == "store" and ours == _OK:
            self._delete_value(tag.key, tag.num_bytes, tag.room)
        elif worst == _GONE and value is not None and value.is_ours:
            self._delete_value(tag.key, value.num_bytes, value.room)

    def _begin(self, lane: Lane, job: Job) -> bool:
        self._under_way[job.tag.kind].append(job)
        # A queue that is full would be so on one rank only.
        return lane.submit(job, is_forced=True)
