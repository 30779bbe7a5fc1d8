# SPDX-License-Identifier: Apache-2.0
"""Ragged integer arrays: many short ranges side by side, with offsets in an `indptr`."""

from __future__ import annotations

import numpy as np

MAX_INT32 = 2**31 - 1


class PlanTooLargeError(ValueError):
    """A plan does not fit the int32 offsets that attention kernels take."""


def check_int32(count: int, what: str) -> None:
    """Raise PlanTooLargeError when `count` of `what` cannot be an int32 offset."""
    if count > MAX_INT32:
        raise PlanTooLargeError(
            f"This step needs {count} {what}, more than the {MAX_INT32} that an int32 offset "
            f"reaches; compute the prompt in smaller chunks or use another attention plan."
        )


def make_indptr(lens: np.ndarray, what: str, start: int = 0) -> np.ndarray:
    """Offsets of consecutive ranges of `lens` (R,): int32 (R + 1,), beginning with `start`.

    what  the things counted, for the error
    Raises PlanTooLargeError when the last offset is no int32.
    """
    # Summed in int64, because the check must see the true total and not a wrapped one.
    indptr = np.empty(len(lens) + 1, np.int64)
    indptr[0] = start
    np.cumsum(lens, out=indptr[1:])
    indptr[1:] += start
    check_int32(int(indptr[-1]), what)
    return indptr.astype(np.int32)


def expand_ranges(starts: np.ndarray, lens: np.ndarray) -> np.ndarray:
    """The ranges [start, start + len) one after another: int64 (sum of lens,).

    starts, lens  (R,) integers; lens may be 0
    """
    stops = np.cumsum(lens)
    total = int(stops[-1]) if len(stops) else 0
    ranges = np.repeat(starts - (stops - lens), lens)
    ranges += np.arange(total)
    return ranges
