# SPDX-License-Identifier: Apache-2.0
"""The folder of a disk tier: closed to other users, opened by one process at a time.

What else lies in it, under a name of ours or not, is never opened, waited for or removed: a
folder, a FIFO, a socket or a link is skipped and counted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger("depcache")

_NOT_A_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR)
_LOCK = "lock"


class NotAFileError(OSError):
    """Something else than a plain file has the name of one."""


class Skipped:
    """Entries that were left alone. Each counts once; the first is said in the log."""

    def __init__(self) -> None:
        self._paths: set[str] = set()

    def __len__(self) -> int:
        return len(self._paths)

    def note(self, path: Path, why: object) -> None:
        """`path` was skipped."""
        if str(path) in self._paths:
            return
        log = logger.debug if self._paths else logger.warning
        self._paths.add(str(path))
        log(
            "disk tier: %s is skipped (%s), and so is all like it, counted as skipped_entries: "
            "move it away",
            path,
            why,
        )


def make_private(folder: Path) -> None:
    """A folder that only its owner can enter. Raises OSError.

    One that is there already is closed too, where it is ours; folders above it stay as they are.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    tighten(folder, folder.stat())


def tighten(path: str | Path, status: os.stat_result) -> None:
    """Take the rights of others away from what is ours; `status` is that of `path`, no link."""
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        os.chmod(path, stat.S_IMODE(status.st_mode) & 0o700)


def open_plain(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a plain file, made for its owner only. Never blocks and follows no link.

    Raises NotAFileError for anything else, and OSError as `os.open`.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno in _NOT_A_FILE:
            raise NotAFileError(f"{path} is not a plain file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAFileError(f"{path} is not a plain file")
    return descriptor


def write_private(path: Path, data: bytes) -> None:
    """All of a file or nothing of it, readable by its owner only. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.new")
    try:
        with open(open_plain(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def try_lock(descriptor: int) -> bool:
    """Whether the file's lock was free; it is held until the descriptor is closed.

    Raises OSError where the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def opened_alone(folder: Path, wait_s: float = 60.0) -> Iterator[None]:
    """Inside, no other process opens this folder. Raises OSError when one does for too long.

    What the dead left changes hands here: seen half-way, a value would look like nobody's.
    """
    descriptor = open_plain(folder / _LOCK, os.O_RDWR | os.O_CREAT)
    try:
        end = time.monotonic() + wait_s
        while not try_lock(descriptor):
            if time.monotonic() > end:
                raise OSError(f"another process has been opening it for {wait_s:g} s")
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)
