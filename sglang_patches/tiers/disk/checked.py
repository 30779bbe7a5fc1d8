# SPDX-License-Identifier: Apache-2.0
"""Storage and manifest together: values go in sealed and come out checked, or not at all.

Runs on the threads of the disk tier. Every verb says what became of it; a storage that raises
is an outcome like any other.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sglang_patches.tiers.disk.fingerprint import Fingerprint
from sglang_patches.tiers.disk.folder import (
    NotAFileError,
    Skipped,
    make_private,
    opened_alone,
    write_private,
)
from sglang_patches.tiers.disk.lane import GivenUpError, Job
from sglang_patches.tiers.disk.manifest import SLACK_BYTES, Known, Manifest, record_bytes
from sglang_patches.tiers.disk.storage import BrokenStorage, Storage, WrongLengthError, open_storage
from sglang_patches.tiers.disk.value import (
    DiskRef,
    Entry,
    find_fault,
    payload_view,
    seal,
    value_bytes,
)

logger = logging.getLogger("depcache")

# Rows of a node, or a function that fills them in; it runs on a thread of the tier.
Payload = np.ndarray | Callable[[np.ndarray], Any]
Sink = Callable[[np.ndarray], Any]

# A file that no manifest names and that is older than this was left by a crash.
_ORPHAN_S = 600.0
# This share of a small tier may be dead in its manifest; in a large one SLACK_BYTES.
_SLACK_SHARE = 1 / 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """`reason` is "" for success; `is_gone` says that the value is not there (any more)."""

    reason: str = ""
    is_gone: bool = False
    rows: np.ndarray | None = None
    detail: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether the storage did not work; other reasons speak of one value alone."""
        return self.reason in ("error", "timeout", "refused")

    @classmethod
    def of(cls, job: Job) -> Outcome:
        """What became of a job that is over."""
        if isinstance(job.outcome, TimeoutError):
            return cls("timeout", detail=str(job.outcome))
        if isinstance(job.outcome, BaseException):  # of `payload` or `into`, or a mistake of ours
            return cls("error", detail=repr(job.outcome))
        return job.outcome


class CheckedStorage:
    """The values of one fingerprint in one backend.

    undeleted_bytes  of values that had to go when it was opened, and could not be deleted
    skipped          what else lies in the folder
    """

    def __init__(
        self, fingerprint: Fingerprint, storage: Storage, manifest: Manifest | None = None
    ) -> None:
        self.undeleted_bytes = 0
        self.skipped = Skipped()
        self._digest = fingerprint.digest
        self._rows = fingerprint.rows
        self._storage = storage
        self._manifest = manifest

    @classmethod
    def open(
        cls,
        fingerprint: Fingerprint,
        folder: Path,
        capacity_bytes: int,
        backend: str,
        config: dict[str, Any],
        **more: Any,
    ) -> tuple[CheckedStorage, list[Known]]:
        """The storage and what it already holds, at most `capacity_bytes` of its own values.

        Where it cannot be opened the storage fails every call, and a warning says why.
        """
        try:
            make_private(folder)
            values = folder / "values"
            with opened_alone(folder):
                make_private(values)
                checked = cls(fingerprint, open_storage(backend, config, values, **more))
                checked._describe(folder / "fingerprint.json", fingerprint)
                slack_bytes = min(SLACK_BYTES, int(capacity_bytes * _SLACK_SHARE))
                checked._manifest = Manifest(folder, checked.skipped, slack_bytes)
                return checked, checked._adopt(checked._manifest, folder, capacity_bytes)
        except Exception as error:
            logger.warning(
                "the disk tier in %s cannot be opened (%s): the server runs without it",
                folder,
                error,
            )
            return cls(fingerprint, BrokenStorage(error)), []

    @property
    def manifest(self) -> Manifest | None:
        """The list of this process; None where the folder could not be opened."""
        return self._manifest

    @property
    def dead_bytes(self) -> int:
        """Bytes of our manifest that say nothing any more."""
        return 0 if self._manifest is None else self._manifest.dead_bytes

    def read_manifests(self) -> Iterator[Known]:
        """All values on record, here and at living neighbours."""
        if self._manifest is not None:
            yield from self._manifest.read_all()

    def put(self, job: Job, ref: DiskRef, entry: Entry, payload: Payload) -> Outcome:
        """Seal and store."""
        value = np.empty(value_bytes(entry.num_path, entry.num_own, self._rows), np.uint8)
        rows = payload_view(value, entry.num_path, self._rows)
        try:
            with job.holding():
                if callable(payload):
                    payload(rows)
                else:
                    rows[:] = payload
            seal(value, self._digest, entry, self._rows)
            if not self._storage.put(ref.key.hex(), value):
                return Outcome("refused", detail="the backend refused the value")
            if self._manifest is not None:
                self._manifest.add(Known(ref.key, entry, len(value)))
            job.settle()
        except GivenUpError:
            self.delete(ref.key)  # nobody knows of it, so it would stay for ever
            return Outcome("timeout")
        except Exception as error:
            self.delete(ref.key)
            return Outcome("error", detail=repr(error))
        return Outcome()

    def get(
        self, job: Job, ref: DiskRef, num_bytes: int, path: bytes, into: Sink | None
    ) -> Outcome:
        """Read, check all of it, and hand over the rows of `ref`."""
        value = np.empty(num_bytes, np.uint8)
        try:
            if not self._storage.get(ref.key.hex(), value):
                fault = "missing"
            else:
                fault = find_fault(value, self._digest, ref, path, self._rows)
        except WrongLengthError:
            fault = "truncated"
        except NotAFileError:
            fault = "not_a_file"
        except Exception as error:
            return Outcome("error", detail=repr(error))
        if fault is not None:
            self.delete(ref.key)
            return Outcome(fault, is_gone=True)
        rows = payload_view(value, ref.num_path, self._rows)[ref.start : ref.stop]
        if into is None:
            return Outcome(rows=rows)
        try:
            job.settle()
        except GivenUpError:
            return Outcome("timeout")
        into(rows)
        return Outcome()

    def delete(self, key: bytes) -> Outcome:
        """Remove a value and its record."""
        try:
            self._storage.delete(key.hex())
            if self._manifest is not None:
                self._manifest.remove(key)
        except Exception as error:
            return Outcome("error", detail=repr(error))
        return Outcome(is_gone=True)

    def close(self) -> None:
        """Let the next process take over."""
        if self._manifest is not None:
            self._manifest.close()

    # -- opening ---------------------------------------------------------------------------------

    def _describe(self, path: Path, fingerprint: Fingerprint) -> None:
        about = json.dumps(dict(fingerprint.facts), indent=2) + "\n"
        try:
            write_private(path, about.encode())
        except OSError as error:  # it is for people to read
            self.skipped.note(path, error)

    def _adopt(self, manifest: Manifest, folder: Path, capacity_bytes: int) -> list[Known]:
        listed = self._storage.sizes()
        on_record = list(manifest.read_all())
        others = {known.key for known in on_record if not known.is_ours}
        kept: dict[bytes, Known] = {}
        gone: set[str] = set()
        used_bytes = 0
        # The newest first: what does not fit is the oldest.
        for known in reversed(on_record):
            name, room = known.key.hex(), room_bytes(known.num_bytes, known.entry.num_path)
            num_bytes = known.num_bytes if listed is None else listed.get(name, (-1, 0))[0]
            fits = not known.is_ours or used_bytes + room <= capacity_bytes
            if num_bytes == known.num_bytes and fits:
                used_bytes += room if known.is_ours else 0
                if known.is_ours or known.key not in kept:
                    kept[known.key] = known
            elif known.is_ours and (
                known.key in others or self._try_delete(name, folder, num_bytes)
            ):
                gone.add(name)
                manifest.remove(known.key)
        if gone:
            manifest.compact()
        named = {key.hex() for key in (*kept, *others)}
        for name, (num_bytes, age_s) in (listed or {}).items():
            if name in gone or name in named:
                continue
            if num_bytes < 0:
                self.skipped.note(folder / "values" / name, "not a plain file")
            elif age_s > _ORPHAN_S and not manifest.is_partial:
                self._try_delete(name, folder, num_bytes)
        return list(kept.values())

    def _try_delete(self, name: str, folder: Path, num_bytes: int) -> bool:
        try:
            self._storage.delete(name)
        except OSError as error:  # it stays, and the rest is of use
            self.undeleted_bytes += max(num_bytes, 0)
            self.skipped.note(folder / "values" / name, error)
            return False
        return True


def room_bytes(num_bytes: int, num_path: int) -> int:
    """What a value takes of the disk: itself, its record, and that again while it is rewritten."""
    return num_bytes + 2 * record_bytes(num_path)
