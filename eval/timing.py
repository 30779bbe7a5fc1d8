# SPDX-License-Identifier: Apache-2.0
"""How long a call takes, where only its median is of interest."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any


def host_ms(call: Callable[[], Any], repeats: int, wait: Callable[[], Any] | None = None) -> float:
    """Median milliseconds until `call`, and `wait` behind it, have returned; the first is free."""
    times: list[float] = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        call()
        if wait is not None:
            wait()
        times.append(1e3 * (time.perf_counter() - start))
    return median(times[1:])
