# SPDX-License-Identifier: Apache-2.0
"""Tier DISK of a server with several ranks: each has a disk tier, and all know the same of it.

Disks are not equally fast and fail alone. What the caches of the ranks are told must be the same,
so an operation is over when it is over on every rank, it has failed when it failed on one, and a
value is there when all ranks have their part of it. They agree on this in `agree`, in passes of the
scheduler, and nothing is told in between.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections import deque
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from sglang_patches.ranks import RankGroup
from sglang_patches.tiers.disk.checked import Outcome, room_bytes
from sglang_patches.tiers.disk.fingerprint import Fingerprint
from sglang_patches.tiers.disk.lane import Job, Lane
from sglang_patches.tiers.disk.operation import Finished, Operation
from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.disk.value import DiskRef, Entry
from sglang_patches.tiers.disk.values import Heard

logger = logging.getLogger("depcache")

# How bad an outcome is, the worst of all ranks counts: a failure that says nothing of the storage
# is less bad than one that does, and a value that is gone is given up everywhere.
_OK, _UNTOLD, _FAILED, _GONE = range(4)
_ELSEWHERE = "other_rank"
_NAME_BYTES = 20
_NS = 1_000_000_000


class RankedDiskTier(DiskTier):
    """The disk tier of one rank. All ranks make the same calls in the same order.

    capacity_bytes  of this rank

    A value of which one rank has no part is deleted by the others, when the tier opens and when a
    read fails. Where one rank cannot open its folder the tier is off, and all values stay.

    What servers on the same folder store while this one runs is not heard: it is found at the
    next start. Their bytes count; values of one that has ended count against this server until it
    is started again.
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
        self._inherited_bytes = 0
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
        mine = {self._name(*each): each for each in super().entries()}
        is_open = self._checked.manifest is not None
        told = self._group.gather(b"".join(mine) if is_open else None)
        lists = [_cut(names) for names in told if names is not None]
        if len(lists) < len(told):
            if not self._is_broken:
                logger.warning("disk tier: a rank cannot open its folder: it is not used")
            self._is_broken = True
            self._values.clear()
            return iter(())
        everywhere = set(lists[0]).intersection(*lists[1:])
        for name, (_, ref) in mine.items():
            if name not in everywhere:
                self._remove(ref.key, self._values[ref.key])
        return iter([mine[name] for name in lists[0] if name in everywhere])

    def hear(self) -> Heard:
        """Nothing: neighbours would have to be heard by all ranks at once."""
        return Heard([])

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
        for _, known in self._neighbours.poll():
            if known is not None and known.is_ours:
                self._inherited_bytes += room_bytes(known.num_bytes, known.entry.num_path)
        waiting = self._under_way.values()
        numbers = [sum(1 for _ in takewhile(self._over.__contains__, jobs)) for jobs in waiting]
        numbers = self._agree_on_room(numbers)
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

    def _agree_on_room(self, numbers: list[int]) -> list[int]:
        """The lowest of each number; with them go time and room, so that it takes one message."""
        now = int(super().now() * _NS)
        free = super().free_bytes - self._inherited_bytes
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

    def _name(self, entry: Entry, ref: DiskRef) -> bytes:
        """What all ranks call a value. The key will not do, because it names the rank.

        One that is a rank's own, and a neighbour's on another rank, has two names: it is of no use.
        """
        state = hashlib.blake2b(entry.namespace, digest_size=_NAME_BYTES)
        state.update(
            struct.pack("<qII?", entry.home, entry.num_own, entry.num_path, self.owns(ref))
        )
        state.update(entry.path)
        return state.digest()


def _cut(names: bytes) -> list[bytes]:
    return [names[at : at + _NAME_BYTES] for at in range(0, len(names), _NAME_BYTES)]
