# SPDX-License-Identifier: Apache-2.0
"""Times of a call that is repeated."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def spread_ms(call: Callable[[], object], repeats: int) -> dict[str, float]:
    """Median and first and last decile of the milliseconds that a call takes."""
    times_ms: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times_ms.append((time.perf_counter() - start) * 1e3)
    deciles = statistics.quantiles(times_ms, n=10)
    found = statistics.median(times_ms), deciles[0], deciles[-1]
    names = ("median_ms", "p10_ms", "p90_ms")
    return {name: round(value, 3) for name, value in zip(names, found, strict=True)}
