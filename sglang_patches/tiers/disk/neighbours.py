# SPDX-License-Identifier: Apache-2.0
"""What other living servers on the same folder store and delete, heard while they do it.

Every server reads its neighbours' lists about once a second, on a thread: from where it stopped
the last time, or from the beginning where a list was written anew. The list of one that has died
is taken over by the first who looks.

The limit holds for all of them together. Everyone may have its share of it, and more as far as
there is room; who has more leaves a little free, so that one with less than its share can grow,
and gives that much up again until all have theirs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sglang_patches.tiers.disk.checked import room_bytes
from sglang_patches.tiers.disk.lane import Job, Lane
from sglang_patches.tiers.disk.manifest import Known, Manifest, read_records

logger = logging.getLogger("depcache")

LOOK_EVERY_S = 1.0
# Who has more than its share leaves this much of the limit free.
FREE_SHARE = 1 / 32
_FOR_EVER = float("inf")

Change = tuple[bytes, Known | None]
"""(key, the value that is there now, or None for one that was removed)"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look found: changes in order, and the bytes and number of living neighbours."""

    changes: list[Change]
    num_bytes: int
    num_living: int


class Lists:
    """The lists of the neighbours, each read on from where the last look ended.

    Belongs to the thread that looks.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._lists: dict[Path, _List] = {}

    def look(self) -> Seen:
        """Everything that has changed since the last look. Raises OSError."""
        changes: list[Change] = []
        paths = self._manifest.others()
        for path in paths:
            inherited = self._inherit(path)
            if inherited is not None:
                self._lists.pop(path, None)
                changes += [(known.key, known) for known in inherited]
                continue
            file = self._manifest.open_list(path)
            if file is not None:
                with file:
                    changes += self._lists.setdefault(path, _List()).read_on(file)
        for path in self._lists.keys() - set(paths):  # inherited by somebody else, who lists it all
            del self._lists[path]
        num_bytes = sum(each.num_bytes + each.dead_bytes for each in self._lists.values())
        return Seen(changes, num_bytes, len(self._lists))

    def _inherit(self, path: Path) -> list[Known] | None:
        try:
            return self._manifest.inherit(path)
        except OSError as error:  # somebody is opening the folder, for one; it can wait
            logger.debug("disk tier: %s is not taken over (%s)", path, error)
            return None


class _List:
    """One neighbour's list: which file it was, how far it was read, and what is in it.

    num_bytes   room of the values that are there
    dead_bytes  of the list that say nothing any more; they take of the limit too
    """

    def __init__(self) -> None:
        self._file: tuple[int, int] | None = None
        self._end = 0
        self._alive: dict[bytes, tuple[int, int]] = {}  # key -> room, bytes of its record
        self.num_bytes = self.dead_bytes = 0

    def read_on(self, file: BinaryIO) -> list[Change]:
        """What is new in it. In a file that was written anew, what is missing was removed."""
        status = os.fstat(file.fileno())
        identity = status.st_dev, status.st_ino
        before: dict[bytes, tuple[int, int]] = {}
        if identity != self._file or status.st_size < self._end:
            before, self._alive, self._end = self._alive, {}, 0
            self.num_bytes = self.dead_bytes = 0
            self._file = identity
        changes: list[Change] = []
        for end, key, known in read_records(file, self._end):
            room, listed = self._alive.pop(key, (0, 0))
            self.num_bytes -= room
            self.dead_bytes += listed
            if known is None:
                self.dead_bytes += end - self._end
            else:
                room = room_bytes(known.num_bytes, known.entry.num_path)
                self._alive[key] = room, end - self._end
                self.num_bytes += room
            self._end = end
            if known is None or key not in before:
                changes.append((key, known))
        return changes + [(key, None) for key in before.keys() - self._alive.keys()]


def limit_of(capacity_bytes: int, num_others: int, other_bytes: int) -> int:
    """Bytes that one server may have beside others that have `other_bytes` of the capacity."""
    if not num_others:
        return capacity_bytes
    left = capacity_bytes - other_bytes
    share = capacity_bytes // (1 + num_others)
    return max(min(share, left), left - int(capacity_bytes * FREE_SHARE), 0)


class Neighbours:
    """The side of the scheduler's thread: looks now and then, and knows the limit.

    num_living  neighbours that lived at the last look
    num_bytes   bytes that they had
    """

    def __init__(
        self,
        manifest: Manifest | None,
        capacity_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self.num_living = self.num_bytes = 0
        self._lists = None if manifest is None else Lists(manifest)
        self._capacity_bytes = capacity_bytes
        self._clock = clock
        self._lane = Lane("depcache-disk-neighbours", 1, 1, clock)
        self._next_look = 0.0

    @property
    def limit_bytes(self) -> int:
        """What this server may have of the limit that all of them have together."""
        return limit_of(self._capacity_bytes, self.num_living, self.num_bytes)

    def poll(self) -> list[Change]:
        """What the last look found; begins the next one when it is time. Does not block."""
        changes: list[Change] = []
        for job in self._lane.poll():
            if isinstance(job.outcome, Seen):
                changes += job.outcome.changes
                self.num_bytes, self.num_living = job.outcome.num_bytes, job.outcome.num_living
            else:
                logger.debug("disk tier: neighbours cannot be read (%r)", job.outcome)
        now = self._clock()
        if self._lists is not None and now >= self._next_look and not self._lane.num_open:
            self._next_look = now + LOOK_EVERY_S
            lists = self._lists
            # Without a deadline: where the disk hangs nothing is heard, and nobody waits for it.
            self._lane.submit(Job(lambda job: lists.look(), _FOR_EVER, _FOR_EVER, None))
        return changes

    def close(self) -> None:
        """Look no more."""
        self._lane.close()
