# SPDX-License-Identifier: Apache-2.0
"""Memory, file descriptors and threads of a server over time, and how fast they grow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eval.soak.server import Server, Usage

WARM_UP_SHARE = 0.5
"""This share of the time is left out: caches and allocators fill first, in steps of some MB."""
EVERY_S = 1.0
NUM_BLOCKS = 10


@dataclass(frozen=True)
class Reading:
    """`life` counts the starts of the server: what it holds starts anew with each."""

    at_s: float
    life: int
    usage: Usage


@dataclass
class Watch:
    """Samples of a server, one a second for as long as `run` runs."""

    server: Server
    samples: list[Reading] = field(default_factory=list)

    async def run(self) -> None:
        """Watch until it is cancelled."""
        while True:
            usage = await asyncio.to_thread(self.server.usage)
            if usage is not None and not self.server.is_ending:
                self.samples.append(Reading(time.monotonic(), self.server.num_starts, usage))
            await asyncio.sleep(EVERY_S)

    def summary(self) -> dict[str, Any]:
        """How things grew in the longest life that was watched, after its warm-up."""
        lives: dict[int, list[Reading]] = {}
        for sample in self.samples:
            lives.setdefault(sample.life, []).append(sample)
        longest = max(lives.values(), key=lambda life: life[-1].at_s - life[0].at_s, default=[])
        return summarize(longest)


def summarize(samples: Sequence[Reading]) -> dict[str, Any]:
    """Growth from the end of the warm-up on; numbers are None where there is too little to tell.

    Descriptors and threads are the smallest in the first and in the last tenth: what is open for
    a request that runs is no growth.
    """
    warm = samples[int(len(samples) * WARM_UP_SHARE) :]
    report: dict[str, Any] = {
        "seconds_watched": round(warm[-1].at_s - warm[0].at_s, 1) if warm else 0.0,
        "rss_growth_mb_per_hour": None,
        "rss_growth_mb_per_hour_error": None,
        "rss_growth_mb_per_hour_of": {},
        "fd_growth": None,
        "threads_growth": None,
        "rss_mb": [],
    }
    if len(warm) < 10:
        return report
    hours = [sample.at_s / 3600 for sample in warm]
    slope, error = fit_slope(*_blocks(hours, [sample.usage.total_rss_mb for sample in warm]))
    slopes = {
        name: fit_slope(hours, [sample.usage.rss_mb.get(name, 0.0) for sample in warm])[0]
        for name in warm[0].usage.rss_mb
    }
    tenth = max(3, len(warm) // 10)
    first, last = warm[:tenth], warm[-tenth:]

    def growth(name: str) -> int:
        def least(part: Sequence[Reading]) -> int:
            return min(getattr(sample.usage, name) for sample in part)

        return least(last) - least(first)

    return report | {
        "rss_growth_mb_per_hour": round(slope, 2),
        "rss_growth_mb_per_hour_error": round(error, 2),
        "rss_growth_mb_per_hour_of": {name: round(of, 2) for name, of in slopes.items()},
        "fd_growth": growth("num_fds"),
        "threads_growth": growth("num_threads"),
        "rss_mb": [
            {name: round(mb, 1) for name, mb in sample.usage.rss_mb.items()}
            for sample in samples[:: max(1, len(samples) // 60)]
        ],
    }


def _blocks(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Means of NUM_BLOCKS stretches: samples a second apart are no independent observations."""
    means = [
        (float(np.mean(xs)), float(np.mean(ys)))
        for xs, ys in zip(np.array_split(x, NUM_BLOCKS), np.array_split(y, NUM_BLOCKS), strict=True)
    ]
    return [x for x, _ in means], [y for _, y in means]


def fit_slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope of the least-squares line, and its standard error, were the residuals independent."""
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    xs = xs - xs.mean()
    spread = float(xs @ xs)
    if len(xs) < 3 or spread == 0:
        return 0.0, 0.0
    slope = float(xs @ ys) / spread
    residuals = ys - ys.mean() - slope * xs
    return slope, float(np.sqrt(residuals @ residuals / (len(xs) - 2) / spread))
