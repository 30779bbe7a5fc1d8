# SPDX-License-Identifier: Apache-2.0
"""What is in the disk tier, in a file: HiCacheStorage cannot be listed, and a restart must know.

Every process appends to a file of its own and holds a lock on it while it lives. A process
that starts takes over the files whose lock is free, and reads those of living neighbours.

    file     records, one after another; a torn or damaged one ends the file
    record   bytes of the body, its CRC-32 | body
    body     kind | key | for an addition: namespace, home, own tokens, bytes of the value, path
"""

from __future__ import annotations

import contextlib
import fcntl
import struct
import threading
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sglang_patches.tiers.value import DIGEST_BYTES, KEY_BYTES, TOKEN_BYTES, Entry

_FRAME = struct.Struct("<II")
_ADDITION = struct.Struct(f"<B{KEY_BYTES}s{DIGEST_BYTES}sqIQ")
_REMOVAL = struct.Struct(f"<B{KEY_BYTES}s")
_ADDED, _REMOVED = 1, 2
_PATTERN = "manifest-*.log"


@dataclass(frozen=True, slots=True)
class Known:
    """One value that is or was in the storage. `is_ours` is False for a living neighbour's."""

    key: bytes
    entry: Entry
    num_bytes: int
    is_ours: bool = True


class Manifest:
    """The list of one process; `add` and `remove` may be called from any thread."""

    def __init__(self, folder: Path) -> None:
        """Open a new file in `folder`, which must exist, and take over what the dead left."""
        self._folder = folder
        self._lock = threading.Lock()
        self._path = folder / f"manifest-{uuid.uuid4().hex}.log"
        others = sorted(folder.glob(_PATTERN), key=_modified)
        self._file = self._path.open("ab", buffering=0)
        _try_lock(self._file)
        inherited: dict[bytes, Known] = {}
        dead = []
        for path in others:
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                if not _try_lock(file):
                    continue  # whoever is alive looks after its own values
                inherited |= {known.key: known for known in _read(file, is_ours=True)}
                dead.append(path)
        for known in inherited.values():
            self.add(known)
        for path in dead:
            path.unlink(missing_ok=True)

    def add(self, known: Known) -> None:
        """Remember a value that was just stored. Raises OSError."""
        self._append(_addition(known))

    def remove(self, key: bytes) -> None:
        """Forget a value. Raises OSError."""
        self._append(_frame(_REMOVAL.pack(_REMOVED, key)))

    def read_all(self) -> Iterator[Known]:
        """Everything on record now, of living neighbours too; oldest first, ours last."""
        others = [path for path in self._folder.glob(_PATTERN) if path != self._path]
        for path in (*sorted(others, key=_modified), self._path):
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                yield from _read(file, is_ours=path == self._path)

    def close(self) -> None:
        """Let the next process take over."""
        self._file.close()

    def _append(self, record: bytes) -> None:
        with self._lock:
            size = self._file.tell()
            if self._file.write(record) != len(record):
                # A full disk may take half of it; what comes after would be unreadable.
                with contextlib.suppress(OSError):
                    self._file.truncate(size)
                    self._file.seek(size)
                raise OSError(f"the manifest {self._path.name} took only part of a record")


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _frame(body: bytes) -> bytes:
    return _FRAME.pack(len(body), zlib.crc32(body)) + body


def _addition(known: Known) -> bytes:
    entry = known.entry
    head = _ADDITION.pack(
        _ADDED, known.key, entry.namespace, entry.home, entry.num_own, known.num_bytes
    )
    return _frame(head + entry.path)


def _read(file: BinaryIO, *, is_ours: bool) -> Iterator[Known]:
    """The values that were added and not removed, oldest first."""
    file.seek(0)
    data = file.read()
    alive: dict[bytes, Known] = {}
    start = 0
    while start + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, start)
        body = data[start + _FRAME.size : start + _FRAME.size + length]
        if len(body) < length or zlib.crc32(body) != checksum:
            break  # torn by a crash, or damaged: nothing behind it can be trusted
        start += _FRAME.size + length
        known = _parse(body, is_ours)
        if known is not None:
            alive.pop(known.key, None)
            alive[known.key] = known
        elif len(body) == _REMOVAL.size and body[0] == _REMOVED:
            alive.pop(_REMOVAL.unpack(body)[1], None)
    yield from alive.values()


def _parse(body: bytes, is_ours: bool) -> Known | None:
    if len(body) < _ADDITION.size or body[0] != _ADDED:
        return None
    _, key, namespace, home, num_own, num_bytes = _ADDITION.unpack_from(body)
    path = body[_ADDITION.size :]
    if len(path) % TOKEN_BYTES or not 0 < num_own <= len(path) // TOKEN_BYTES:
        return None
    return Known(key, Entry(namespace, path, num_own, home), num_bytes, is_ours)


def _try_lock(file: BinaryIO) -> bool:
    """Whether the lock was free. A file system without locks counts as held: touch nothing."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
