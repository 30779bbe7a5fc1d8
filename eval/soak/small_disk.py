# SPDX-License-Identifier: Apache-2.0
"""A file system that is soon full, and that can be made read-only: a tmpfs of three megabytes.

While a file on it is open for writing the system refuses to make it read-only.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

FULL_BYTES = 3_000_000
"""The size of the file system: some 350 tokens of depcache-tiny."""


class MountError(Exception):
    """A file system could not be mounted; its text says why."""


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[bool], None]]:
    """A file system of FULL_BYTES at `folder`; the function given sets whether it is read-only.

    Raises MountError where this process may not mount.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={FULL_BYTES}", "tmpfs", str(folder))
    try:
        yield lambda is_read_only: _mount(
            "-o", f"remount,{'ro' if is_read_only else 'rw'},size={FULL_BYTES}", str(folder)
        )
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], capture_output=True)


def _mount(*words: str) -> None:
    try:
        done = subprocess.run(["mount", *words], capture_output=True, text=True)
    except OSError as error:
        raise MountError(str(error)) from None
    if done.returncode:
        raise MountError(done.stderr.strip() or f"mount ended with code {done.returncode}")
