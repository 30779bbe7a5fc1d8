# SPDX-License-Identifier: Apache-2.0
"""A deadline that is looked at between two steps."""

from __future__ import annotations

import time

from depcache.errors import DepCacheError


class TooSlowError(DepCacheError):
    """The deadline has passed."""


class Clock:
    """Raises TooSlowError in `check` once `seconds` have passed; None: never."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.perf_counter() + seconds

    def check(self, needed: float = 0.0) -> None:
        """Raises TooSlowError too where `needed` seconds more would pass the deadline."""
        if self._end is not None and time.perf_counter() + needed > self._end:
            raise TooSlowError("this takes too long: give it more time, or a shorter text")
