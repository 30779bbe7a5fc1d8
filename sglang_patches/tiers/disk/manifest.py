# SPDX-License-Identifier: Apache-2.0
"""What is in the disk tier, in a file: HiCacheStorage cannot be listed, and a restart must know.

Every process appends to a file of its own and holds a lock on it while it lives. A process
that starts takes over the files whose lock is free, and reads those of living neighbours.

    file     records, one after another; a torn or damaged one ends the file
    record   bytes of the body, its CRC-32 | body
    body     kind | key | for an addition: namespace, home, own tokens, bytes of the value, path;
             for an owner: digest of the tenant whose the value is that is added next. The first
             release has no such records and passes them over

A record is dead once its value was removed or added anew, and so is one that says so. When more
of the file is dead than alive it is written anew, under another name that nobody looks for, and
put into place with its lock held: at every time one of both is there, whole and locked.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sglang_patches.tiers.disk.folder import (
    NotAFileError,
    Skipped,
    open_plain,
    opened_alone,
    try_lock,
)
from sglang_patches.tiers.disk.value import DIGEST_BYTES, KEY_BYTES, TOKEN_BYTES, Entry

logger = logging.getLogger("depcache")

_FRAME = struct.Struct("<II")
_ADDITION = struct.Struct(f"<B{KEY_BYTES}s{DIGEST_BYTES}sqIQ")
_REMOVAL = struct.Struct(f"<B{KEY_BYTES}s")
_OWNER = struct.Struct(f"<B{KEY_BYTES}s{DIGEST_BYTES}s")
_ADDED, _REMOVED, _OWNED = 1, 2, 3
_NOBODY = bytes(DIGEST_BYTES)  # not known
_PATTERN = "manifest-*.log"
_UNFINISHED = ".manifest-*.new"
# A file that is being made is locked at once; one this old and free was left by a crash.
_STALE_S = 600.0
# So many bytes may be dead however little is alive: less would be rewritten all the time.
SLACK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Known:
    """One value that is or was in the storage. `is_ours` is False for a living neighbour's."""

    key: bytes
    entry: Entry
    num_bytes: int
    is_ours: bool = True


def record_bytes(num_path: int) -> int:
    """Bytes of the records of a value with so many path tokens: its owner and its addition."""
    return 2 * _FRAME.size + _OWNER.size + _ADDITION.size + num_path * TOKEN_BYTES


class Manifest:
    """The list of one process; `add` and `remove` may be called from any thread.

    is_partial  a file could not be read, so values that nobody names may be someone's
    """

    def __init__(
        self, folder: Path, skipped: Skipped | None = None, slack_bytes: int = SLACK_BYTES
    ) -> None:
        """Open a new file in `folder`, which must exist, and take over what the dead left.

        Raises OSError, also where the file system has no locks.
        """
        self.is_partial = False
        self._folder = folder
        self._skipped = Skipped() if skipped is None else skipped
        self._slack_bytes = slack_bytes
        self._lock = threading.Lock()
        self._path = folder / f"manifest-{uuid.uuid4().hex}.log"
        self._places: dict[bytes, tuple[int, int]] = {}  # key -> offset and bytes of its record
        self._live_bytes = self._file_bytes = 0
        self._retry_bytes = 0  # rewriting failed: not again before the file has this length
        self._sweep()
        with contextlib.ExitStack() as taken:
            dead = {path: file for path in self.others() if (file := self._take(path, taken))}
            inherited: dict[bytes, Known] = {}
            for file in dead.values():
                inherited |= {known.key: known for known in _read(file, is_ours=True)}
            self._put_into_place((known.key, _addition(known)) for known in inherited.values())
            for path in dead:
                path.unlink(missing_ok=True)

    @property
    def dead_bytes(self) -> int:
        """Bytes of the file that say nothing any more."""
        return self._file_bytes - self._live_bytes

    def add(self, known: Known) -> None:
        """Remember a value that was just stored. Raises OSError."""
        record = _addition(known)
        with self._lock:
            offset = self._append(record)
            self._forget(known.key)
            self._places[known.key] = offset, len(record)
            self._live_bytes += len(record)
            self._compact_if_due()

    def remove(self, key: bytes) -> None:
        """Forget a value; one that is not ours stays with whose it is. Raises OSError."""
        with self._lock:
            if key in self._places:
                self._append(_frame(_REMOVAL.pack(_REMOVED, key)))
                self._forget(key)
                self._compact_if_due()

    def compact(self) -> None:
        """Leave out what is dead; where the disk does not allow it the file is as it was."""
        with self._lock:
            self._compact()

    def read_all(self) -> Iterator[Known]:
        """Everything on record now, of living neighbours too; oldest first, ours last."""
        for path in (*self.others(), self._path):
            file = self.open_list(path)
            if file is not None:
                with file:
                    yield from _read(file, is_ours=path == self._path)

    def inherit(self, path: Path) -> list[Known] | None:
        """Take over the list of a process that has died; None while it lives. Raises OSError.

        Its values are ours from now on.
        """
        with opened_alone(self._folder, wait_s=0.0), contextlib.ExitStack() as taken:
            file = self._take(path, taken)
            if file is None:
                return None
            inherited = list(_read(file, is_ours=True))
            for known in inherited:
                self.add(known)
            path.unlink(missing_ok=True)
            return inherited

    def close(self) -> None:
        """Let the next process take over."""
        self._file.close()

    # -- our file --------------------------------------------------------------------------------

    def _append(self, record: bytes) -> int:
        """Where the record begins."""
        offset, descriptor = self._file_bytes, self._file.fileno()
        if os.pwrite(descriptor, record, offset) != len(record):
            # A full disk may take half of it; what comes after would be unreadable.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, offset)
            raise OSError(f"the manifest {self._path.name} took only part of a record")
        self._file_bytes += len(record)
        return offset

    def _forget(self, key: bytes) -> None:
        self._live_bytes -= self._places.pop(key, (0, 0))[1]

    def _compact_if_due(self) -> None:
        # Each byte that is written anew was paid for by one written before: the cost is constant.
        if self.dead_bytes <= max(self._slack_bytes, self._live_bytes):
            return
        if self._file_bytes >= self._retry_bytes:
            self._compact()

    def _compact(self) -> None:
        old = self._file
        descriptor = old.fileno()
        records = (
            (key, os.pread(descriptor, num_bytes, offset))
            for key, (offset, num_bytes) in self._places.items()
        )
        try:
            self._put_into_place(records)
        except OSError as error:
            self._retry_bytes = 2 * self._file_bytes
            logger.warning("disk tier: %s cannot be shortened (%s)", self._path, error)
            return
        self._retry_bytes = 0
        old.close()

    def _put_into_place(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        unfinished = self._folder / f".{self._path.name}.new"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        file = os.fdopen(open_plain(unfinished, flags), "r+b", buffering=1 << 20)
        places: dict[bytes, tuple[int, int]] = {}
        offset = 0
        try:
            if not try_lock(file.fileno()):
                raise OSError(f"{unfinished} is new, and another process has locked it")
            for key, record in records:
                file.write(record)
                places[key] = offset, len(record)
                offset += len(record)
            file.flush()
            os.replace(unfinished, self._path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # of what could not be written before either
                file.close()
            raise
        self._file, self._places = file, places
        self._file_bytes = self._live_bytes = offset

    # -- the files of others ---------------------------------------------------------------------

    def others(self) -> list[Path]:
        """The files of other processes, oldest first."""
        found = [path for path in self._folder.glob(_PATTERN) if path != self._path]
        return sorted(found, key=_modified)

    def open_list(self, path: Path, flags: int = os.O_RDONLY) -> BinaryIO | None:
        """A list to read; None for what is gone meanwhile, or cannot be read."""
        try:
            return open(open_plain(path, flags), "rb")
        except FileNotFoundError:
            return None
        except OSError as error:
            self.is_partial |= not isinstance(error, NotAFileError)
            self._skipped.note(path, error)
            return None

    def _take(self, path: Path, taken: contextlib.ExitStack) -> BinaryIO | None:
        """The file of a process that is dead, locked until `taken` is closed."""
        file = self.open_list(path, os.O_RDWR)  # some file systems lock only what may be written
        if file is None:
            return None
        taken.enter_context(file)
        # Whoever is alive looks after its own values. Its lock is free for us if it has put
        # another file into this one's place since it was opened here.
        if try_lock(file.fileno()) and _is_at(path, file):
            return file
        return None

    def _sweep(self) -> None:
        for path in self._folder.glob(_UNFINISHED):
            if time.time() - _modified(path) > _STALE_S:
                with self.open_list(path, os.O_RDWR) or contextlib.nullcontext() as file:
                    if file is not None and try_lock(file.fileno()) and _is_at(path, file):
                        path.unlink(missing_ok=True)


def _modified(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _frame(body: bytes) -> bytes:
    return _FRAME.pack(len(body), zlib.crc32(body)) + body


def _addition(known: Known) -> bytes:
    entry = known.entry
    head = _ADDITION.pack(
        _ADDED, known.key, entry.namespace, entry.home, entry.num_own, known.num_bytes
    )
    owner = _OWNER.pack(_OWNED, known.key, entry.owner or _NOBODY)
    return _frame(owner) + _frame(head + entry.path)


def read_records(
    file: BinaryIO, start: int = 0, *, is_ours: bool = False
) -> Iterator[tuple[int, bytes, Known | None]]:
    """(where the next record begins, key, the value or None where it was removed), in order."""
    file.seek(start)
    end, size = start, os.fstat(file.fileno()).st_size
    owner = (b"", _NOBODY)
    while len(head := file.read(_FRAME.size)) == _FRAME.size:
        length, checksum = _FRAME.unpack(head)
        end += _FRAME.size + length
        if end > size or zlib.crc32(body := file.read(length)) != checksum:
            break  # torn by a crash, or damaged: nothing behind it can be trusted
        if len(body) == _OWNER.size and body[0] == _OWNED:
            owner = _OWNER.unpack(body)[1:]
        elif (known := _parse(body, owner, is_ours)) is not None:
            yield end, known.key, known
        elif len(body) == _REMOVAL.size and body[0] == _REMOVED:
            yield end, _REMOVAL.unpack(body)[1], None


def _read(file: BinaryIO, *, is_ours: bool) -> Iterator[Known]:
    """The values that were added and not removed, oldest first."""
    alive: dict[bytes, Known] = {}
    for _, key, known in read_records(file, is_ours=is_ours):
        alive.pop(key, None)
        if known is not None:
            alive[key] = known
    yield from alive.values()


def _parse(body: bytes, owner: tuple[bytes, bytes], is_ours: bool) -> Known | None:
    if len(body) < _ADDITION.size or body[0] != _ADDED:
        return None
    _, key, namespace, home, num_own, num_bytes = _ADDITION.unpack_from(body)
    path = body[_ADDITION.size :]
    if len(path) % TOKEN_BYTES or not 0 < num_own <= len(path) // TOKEN_BYTES:
        return None
    tenant = owner[1] if owner[0] == key and owner[1] != _NOBODY else b""
    return Known(key, Entry(namespace, path, num_own, home, tenant), num_bytes, is_ours)
