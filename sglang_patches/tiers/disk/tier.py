# SPDX-License-Identifier: Apache-2.0
"""Tier DISK: one value per node in an SGLang storage backend, checked in full when read.

Nothing here blocks the caller and nothing raises because of a storage: a disk that is full,
slow, read-only, gone or wrong costs a miss, which is counted by its reason.

The tree decides what is stored and what is deleted. `store`, `load`, `delete` and `poll`
belong to one thread, the scheduler's; the storage is called from threads of the tier.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from depcache.errors import ConfigError
from sglang_patches.tiers.disk.breaker import Breaker
from sglang_patches.tiers.disk.checked import CheckedStorage, Outcome, Payload, Sink, room_bytes
from sglang_patches.tiers.disk.fingerprint import Fingerprint
from sglang_patches.tiers.disk.lane import Job, Lane
from sglang_patches.tiers.disk.neighbours import Neighbours
from sglang_patches.tiers.disk.operation import Finished, Operation
from sglang_patches.tiers.disk.storage import check_backend
from sglang_patches.tiers.disk.value import (
    TOKEN_BYTES,
    DiskRef,
    Entry,
    make_key,
    make_ref,
    value_bytes,
)
from sglang_patches.tiers.disk.values import Heard, Value, Values


class DiskTier:
    """Values of one fingerprint and the list of them, at most `capacity_bytes` in all.

    Other processes on the same folder have lists and values of their own, in the same limit. Each
    hears what the others store, may load it, and deletes only its own.
    """

    def __init__(
        self,
        fingerprint: Fingerprint,
        folder: str | Path,
        capacity_bytes: int,
        *,
        backend: str = "file",
        backend_config: dict[str, Any] | None = None,
        host_pool: Any = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        deadline_s: float = 5.0,
        failures_to_off: int = 5,
        off_s: float = 30.0,
        max_waiting_stores: int = 1024,
        max_waiting_loads: int = 4096,
        num_load_threads: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raise ConfigError for settings that cannot work; a storage that does not open is off.

        folder      holds one folder per fingerprint: the manifests, and the values of `file`
        deadline_s  for one call of the storage; a load may wait and run so long in all
        """
        check_backend(backend, backend_config or {})
        if capacity_bytes <= 0:
            raise ConfigError(
                f"disk_gb gives {capacity_bytes} bytes: use more, or 0 for no disk tier"
            )
        self.capacity_bytes = int(capacity_bytes)
        self.fingerprint = fingerprint
        self.folder = Path(folder).expanduser() / fingerprint.name
        self.counters: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self._rows = fingerprint.rows
        self._deadline_s = deadline_s
        self._clock = clock
        self._breaker = Breaker("disk tier", failures_to_off, off_s, self.now)
        # One thread writes and deletes, so that both happen in the order they were asked for.
        self._writes = Lane("depcache-disk-write", 1, max_waiting_stores, clock)
        self._reads = Lane("depcache-disk-read", num_load_threads, max_waiting_loads, clock)
        self._storing: set[bytes] = set()
        self._done: list[Finished] = []
        self._tickets = count(1)
        self._cleared: set[bytes] = set()
        self._checked, known = CheckedStorage.open(
            fingerprint,
            self.folder,
            self.capacity_bytes,
            backend,
            backend_config or {},
            host_pool=host_pool,
            tp_rank=tp_rank,
            tp_size=tp_size,
        )
        self._neighbours = Neighbours(self._checked.manifest, self.capacity_bytes, clock)
        self._values = Values(known)
        if self._checked.undeleted_bytes:
            self._note_undeleted(self._checked.undeleted_bytes)

    def entries(self) -> Iterator[tuple[Entry, DiskRef]]:
        """Every value that is there, for the tree to be built again; parents in no order.

        Reads the manifests: for a start, not for every request.
        """
        seen = set()
        for known in self._checked.read_manifests():
            if known.key in self._values and known.key not in seen:
                seen.add(known.key)
                yield known.entry, make_ref(known.key, known.entry)

    def hear(self) -> Heard:
        """What neighbours have done since the last call. Does not block."""
        return self._values.hear(self._neighbours.poll(), self._storing)

    # -- sizes -----------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Bytes of values, and of their list; above the capacity by what could not be deleted."""
        return self._values.used_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that can still be stored; less than none where neighbours want their share."""
        return self._neighbours.limit_bytes - self._values.used_bytes - self._checked.dead_bytes

    @property
    def num_values(self) -> int:
        """Values in the storage."""
        return len(self._values)

    @property
    def num_open(self) -> int:
        """Operations under way, deletions included."""
        return self._writes.num_open + self._reads.num_open

    @property
    def is_off(self) -> bool:
        """Whether the storage is left alone because it keeps failing."""
        return self._breaker.is_off

    def num_bytes(self, num_path: int, num_own: int) -> int:
        """Bytes that storing so many own tokens at the end of such a path takes."""
        return room_bytes(value_bytes(num_path, num_own, self._rows), num_path)

    # -- the four verbs --------------------------------------------------------------------------

    def store(self, entry: Entry, payload: Payload) -> int | None:
        """Begin to store; a ticket, or None when it was dropped at once.

        payload  uint8 (num_own, bytes per token), or a function that fills such an array. Rows
                 behind it (host slots) must stay as they are until `poll` names the ticket.
        """
        key = make_key(self.fingerprint.digest, entry)
        ref = make_ref(key, entry)
        value = self._values.get(key)
        if value is not None:
            value.live = entry.num_own
            return self._finish_now(ref)
        num_bytes = value_bytes(entry.num_path, entry.num_own, self._rows)
        room = room_bytes(num_bytes, entry.num_path)
        reason = None
        if self.is_off:
            reason = "off"
        elif key in self._storing:
            reason = "storing"
        elif room > self.free_bytes:
            reason = "full"
        if reason is None:
            tag = Operation("store", next(self._tickets), key, ref, num_bytes, room)
            put = partial(self._checked.put, ref=ref, entry=entry, payload=payload)
            job = Job(put, self._deadline_s, 4 * self._deadline_s, tag)
            if self._begin(self._writes, job):
                self._storing.add(key)
                self._values.used_bytes += room
                return tag.ticket
            reason = "queue_full"
        self.dropped[reason] += 1
        return None

    def has(self, ref: DiskRef) -> bool:
        """Whether the value is in the storage, as far as is known without reading it."""
        return ref.key in self._values

    def owns(self, ref: DiskRef) -> bool:
        """Whether the value is in the storage, and ours."""
        return ref.key in self._values and self._values[ref.key].is_ours

    def load(
        self, ref: DiskRef, path: bytes, namespace: bytes, into: Sink | None = None
    ) -> int | None:
        """Begin to load the tokens of `ref`; a ticket, or None when it is a miss at once.

        path       raw int32 tokens from the first system token to the last token of `ref`
        namespace  digest of the namespace that asks
        into       is given the rows, uint8 (tokens, bytes per token), on a thread of the tier,
                   after they were checked and never after `poll` named the ticket
        """
        reason = None
        if ref.key not in self._values:
            reason = "missing"
        elif namespace != ref.namespace:
            reason = "namespace"
        elif len(path) != ref.path_len * TOKEN_BYTES:
            reason = "tokens"
        elif self.is_off:
            reason = "off"
        if reason is None:
            num_bytes = self._values[ref.key].num_bytes
            tag = Operation("load", next(self._tickets), ref.key, ref, num_bytes, 0)
            get = partial(self._checked.get, ref=ref, num_bytes=num_bytes, path=path, into=into)
            job = Job(get, self._deadline_s, self._deadline_s, tag)
            if self._begin(self._reads, job):
                return tag.ticket
            reason = "queue_full"
        self.misses[reason] += 1
        return None

    def delete(self, ref: DiskRef) -> None:
        """Give up the tokens of `ref`; the value goes with its last token.

        Each token may be given up once. Space counts as free at once: what is stored next
        waits behind the deletion.
        """
        value = self._values.get(ref.key)
        if value is None:
            return
        value.live -= ref.num_tokens
        if value.live <= 0:
            self._remove(ref.key, value)

    def clear(self) -> None:
        """Delete every value of this process, also those that are being stored."""
        for key, value in list(self._values.items()):
            self._remove(key, value)
        self._cleared |= self._storing

    def agree(self) -> None:
        """With other ranks, see `RankedDiskTier`; this tier has none."""

    def now(self) -> float:
        """Seconds, for whatever is decided by time."""
        return self._clock()

    def poll(self) -> list[Finished]:
        """Operations that ended since the last call, in no order. Does not block."""
        finished, self._done = self._done, []
        for job in (*self._writes.poll(), *self._reads.poll()):
            one = self._conclude(job)
            if one is not None:
                finished.append(one)
        return finished

    def drain(self, seconds: float) -> list[Finished]:
        """Wait until nothing is under way, at most so long. Blocks: not for the scheduler."""
        end = time.monotonic() + seconds
        finished = self.poll()
        while self.num_open and time.monotonic() < end:
            lane = self._reads if self._reads.num_open else self._writes
            lane.wait(min(0.05, seconds))
            finished += self.poll()
        return finished + self.poll()

    def close(self, seconds: float = 5.0) -> None:
        """Finish what is under way, at most so long, and let go of the folder."""
        self._writes.close()
        self._reads.close()
        self._neighbours.close()
        self.drain(seconds)
        self._checked.close()

    def describe(self) -> dict[str, Any]:
        """Sizes and counters, for the status route."""
        return {
            "fingerprint": self.fingerprint.name,
            "values": self.num_values,
            "capacity_bytes": self.capacity_bytes,
            "limit_bytes": self._neighbours.limit_bytes,
            "used_bytes": self._values.used_bytes,
            "neighbours": self._neighbours.num_living,
            "neighbour_bytes": self._neighbours.num_bytes,
            "open_operations": self.num_open,
            "stuck_threads": self._num_stuck,
            "is_off": self.is_off,
            "off_events": self._breaker.num_off,
            "skipped_entries": len(self._checked.skipped),
            "misses": dict(self.misses),
            "dropped": dict(self.dropped),
            **self.counters,
        }

    # -- what jobs leave behind --------------------------------------------------------------------

    @property
    def _num_stuck(self) -> int:
        return self._writes.num_stuck + self._reads.num_stuck

    def _finish_now(self, ref: DiskRef) -> int:
        ticket = next(self._tickets)
        self._done.append(Finished(ticket, "store", True, "", ref))
        return ticket

    def _begin(self, lane: Lane, job: Job) -> bool:
        return lane.submit(job)

    def _remove(self, key: bytes, value: Value) -> None:
        del self._values[key]
        if not value.is_ours:
            return
        self._values.used_bytes -= value.room
        self.counters["deleted"] += 1
        self._delete_value(key, value.num_bytes, value.room)

    def _delete_value(self, key: bytes, num_bytes: int, room: int) -> None:
        job = Job(
            lambda job: self._checked.delete(key),
            self._deadline_s,
            float("inf"),
            Operation("delete", 0, key, None, num_bytes, room),
        )
        self._writes.submit(job, is_forced=True)

    def _conclude(self, job: Job) -> Finished | None:
        outcome = Outcome.of(job)
        if not outcome.is_failure:
            self._breaker.succeed()
        elif self._is_telling(job):
            self._breaker.fail(f"{outcome.reason}, {outcome.detail}")
        return self._end(job, outcome)

    def _is_telling(self, job: Job) -> bool:
        """Whether its failure says anything of the storage: it was called, or others hang."""
        return job.seconds_run is not None or self._num_stuck > 0

    def _end(self, job: Job, outcome: Outcome) -> Finished | None:
        tag: Operation = job.tag
        if outcome.is_failure:
            self.counters["failures"] += 1
        if tag.kind == "delete":
            if outcome.reason:
                self._note_undeleted(tag.room)
            return None
        conclude = self._conclude_store if tag.kind == "store" else self._conclude_load
        return conclude(tag, outcome, job.seconds_run or 0.0)

    def _note_undeleted(self, num_bytes: int) -> None:
        """Still on the disk, and nobody will delete it before the next start."""
        self._values.used_bytes += num_bytes
        self.counters["undeleted_bytes"] += num_bytes

    def _conclude_store(self, tag: Operation, outcome: Outcome, seconds: float) -> Finished:
        self._storing.discard(tag.key)
        reason = outcome.reason
        if reason:
            self._values.used_bytes -= tag.room
            self._cleared.discard(tag.key)
        else:
            assert tag.ref is not None
            own = tag.ref.num_own
            value = self._values[tag.key] = Value(tag.num_bytes, tag.room, own, True)
            if tag.key in self._cleared:
                self._cleared.discard(tag.key)
                self._remove(tag.key, value)
                reason = "cleared"
        if reason:
            self.dropped[reason] += 1
            return Finished(tag.ticket, "store", False, reason, None, seconds=seconds)
        self.counters["stored"] += 1
        self.counters["stored_bytes"] += tag.num_bytes
        return Finished(
            tag.ticket, "store", True, "", tag.ref, num_bytes=tag.num_bytes, seconds=seconds
        )

    def _conclude_load(self, tag: Operation, outcome: Outcome, seconds: float) -> Finished:
        ref = tag.ref
        assert ref is not None
        if outcome.reason:
            self.misses[outcome.reason] += 1
            if outcome.is_gone:
                value = self._values.pop(tag.key, None)
                if value is not None:
                    self._values.used_bytes -= value.room
            return Finished(
                tag.ticket, "load", False, outcome.reason, ref, outcome.is_gone, seconds=seconds
            )
        self.counters["loaded"] += 1
        self.counters["loaded_tokens"] += ref.num_tokens
        self.counters["loaded_bytes"] += tag.num_bytes
        return Finished(
            tag.ticket, "load", True, "", ref, False, outcome.rows, tag.num_bytes, seconds
        )
