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

from sglang_patches.tiers.fingerprint import Fingerprint
from sglang_patches.tiers.lane import GivenUpError, Job
from sglang_patches.tiers.manifest import Known, Manifest
from sglang_patches.tiers.storage import BrokenStorage, Storage, WrongLengthError, open_storage
from sglang_patches.tiers.value import (
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """`reason` is "" for success; `is_gone` says that the value is not there (any more)."""

    reason: str = ""
    is_gone: bool = False
    rows: np.ndarray | None = None
    detail: str = ""


class CheckedStorage:
    """The values of one fingerprint in one backend."""

    def __init__(
        self, fingerprint: Fingerprint, storage: Storage, manifest: Manifest | None
    ) -> None:
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
            values = folder / "values"
            values.mkdir(parents=True, exist_ok=True)
            about = json.dumps(dict(fingerprint.facts), indent=2) + "\n"
            (folder / "fingerprint.json").write_text(about, encoding="utf-8")
            storage = open_storage(backend, config, values, **more)
            manifest = Manifest(folder)
            known = _adopt(storage, manifest, capacity_bytes)
        except Exception as error:
            logger.warning(
                "the disk tier in %s cannot be opened (%s): the server runs without it",
                folder,
                error,
            )
            return cls(fingerprint, BrokenStorage(error), None), []
        return cls(fingerprint, storage, manifest), known

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


def _adopt(storage: Storage, manifest: Manifest, capacity_bytes: int) -> list[Known]:
    listed = storage.sizes()
    kept: dict[bytes, Known] = {}
    used_bytes = 0
    # The newest first: what does not fit is the oldest.
    for known in reversed(list(manifest.read_all())):
        is_there = listed is None or listed.get(known.key.hex(), (-1, 0))[0] == known.num_bytes
        fits = not known.is_ours or used_bytes + known.num_bytes <= capacity_bytes
        if is_there and fits:
            if known.is_ours:
                used_bytes += known.num_bytes
            if known.is_ours or known.key not in kept:
                kept[known.key] = known
        elif known.is_ours:
            storage.delete(known.key.hex())
            manifest.remove(known.key)
    names = {key.hex() for key in kept}
    for name, (_, age_s) in (listed or {}).items():
        if age_s > _ORPHAN_S and name not in names:
            storage.delete(name)
    return list(kept.values())
