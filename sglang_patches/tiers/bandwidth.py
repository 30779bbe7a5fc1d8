# SPDX-License-Identifier: Apache-2.0
"""Load or recompute, by what both were seen to cost on this machine.

A transfer of n tokens costs `latency + n * per_token`; both terms are fitted to the transfers
observed, newer ones weighing more. Recomputing n tokens costs `n * per_token` of prefill: the
forward pass runs anyway, for the task, so its fixed part is not saved by loading.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, get_args

from sglang_patches.tiers.names import DISK, HOST

SourceTier = Literal["host", "disk"]
"""`names.HOST` or `names.DISK`."""

# An observation loses half its weight after about 35 later ones.
DECAY = 0.98
# An estimate this old may describe another load, another disk, another day.
STALE_S = 300.0
# Fewer observations than this are luck.
MIN_OBSERVATIONS = 3


class LinearCost:
    """Seconds as a line over an amount: exponentially forgetting least squares."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_observations = 0
        self._clock = clock
        self._last = 0.0
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, amount: float, seconds: float) -> None:
        """One measured operation; amounts of 0 say nothing and are ignored."""
        if amount <= 0 or seconds < 0:
            return
        self.num_observations += 1
        self._last = self._clock()
        self._weight = self._weight * DECAY + 1
        self._x = self._x * DECAY + amount
        self._y = self._y * DECAY + seconds
        self._xx = self._xx * DECAY + amount * amount
        self._xy = self._xy * DECAY + amount * seconds

    @property
    def is_known(self) -> bool:
        """Whether there are enough observations and the last one is fresh."""
        is_fresh = self._clock() - self._last <= STALE_S
        return self.num_observations >= MIN_OBSERVATIONS and is_fresh

    def fit(self) -> tuple[float, float]:
        """(fixed seconds, seconds per unit), both >= 0; (0, 0) before any observation."""
        if not self.num_observations:
            return 0.0, 0.0
        spread = self._weight * self._xx - self._x * self._x
        # Amounts that hardly differ cannot tell the terms apart: everything is per unit.
        if spread <= 1e-6 * self._x * self._x:
            return 0.0, self._y / self._x
        slope = (self._weight * self._xy - self._x * self._y) / spread
        fixed = (self._y - slope * self._x) / self._weight
        if slope < 0:  # noise: the mean is the better guess
            return self._y / self._weight, 0.0
        if fixed < 0:
            return 0.0, self._xy / self._xx
        return fixed, slope


class Bandwidth:
    """Running estimates of every hop and of prefill. Single-threaded, like its callers."""

    def __init__(self, bytes_per_token: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_token = bytes_per_token
        self._loads: dict[SourceTier, LinearCost] = {
            tier: LinearCost(clock) for tier in get_args(SourceTier)
        }
        self._prefill = LinearCost(clock)

    def observe_load(self, tier: SourceTier, num_tokens: int, seconds: float) -> None:
        """One transfer: `host` to device, or one value from `disk` to host."""
        self._loads[tier].observe(num_tokens, seconds)

    def observe_prefill(self, num_tokens: int, seconds: float) -> None:
        """One forward pass that computed so many new tokens."""
        self._prefill.observe(num_tokens, seconds)

    def should_load(self, num_tokens: int, tier: SourceTier, num_nodes: int = 1) -> bool:
        """Whether bringing these tokens to the device is faster than computing them anew.

        Whatever is not measured, or was measured too long ago, counts as free to load: trying
        is what measures it, and memory and disks outrun prefill nearly everywhere. The same
        holds while noise hides what a token of prefill costs: none is free to compute.

        num_nodes  values they are spread over, each with its own latency on disk
        """
        prefill_s = self.prefill_seconds(num_tokens)
        if not self._prefill.is_known or prefill_s == 0:
            return True
        return self.load_seconds(num_tokens, tier, num_nodes) < prefill_s

    def load_seconds(self, num_tokens: int, tier: SourceTier, num_nodes: int = 1) -> float:
        """Expected seconds to the device; hops that are not known count as 0."""
        seconds = 0.0
        if self._loads[HOST].is_known:
            fixed, slope = self._loads[HOST].fit()
            seconds += fixed + slope * num_tokens
        if tier == DISK and self._loads[DISK].is_known:
            fixed, slope = self._loads[DISK].fit()
            seconds += fixed * num_nodes + slope * num_tokens
        return seconds

    def prefill_seconds(self, num_tokens: int) -> float:
        """Expected seconds that these tokens add to a forward pass; 0 before any was seen."""
        return self._prefill.fit()[1] * num_tokens

    def describe(self) -> dict[str, dict[str, float]]:
        """The estimates, for the status route."""
        report: dict[str, dict[str, float]] = {}
        for tier, cost in self._loads.items():
            fixed, slope = cost.fit()
            report[tier] = {
                "latency_ms": fixed * 1e3,
                "bytes_per_s": self._bytes_per_token / slope if slope else 0.0,
                "observations": cost.num_observations,
            }
        fixed, slope = self._prefill.fit()
        report["prefill"] = {
            "latency_ms": fixed * 1e3,
            "tokens_per_s": 1 / slope if slope else 0.0,
            "observations": self._prefill.num_observations,
        }
        return report
