# SPDX-License-Identifier: Apache-2.0
"""Waiting until a file is old, without a guess at how finely its file system counts time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path


def wait_until_older(files: Iterable[Path]) -> None:
    """Return when the clock is past the last change of each of `files`."""
    newest_ns = max(file.stat().st_ctime_ns for file in files)
    while time.time_ns() <= newest_ns:
        time.sleep(0.001)
