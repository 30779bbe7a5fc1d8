# SPDX-License-Identifier: Apache-2.0
"""How long evicted KV had been idle: the tree's ticks, read as times outside of the tree.

The tree counts uses with a clock of its own, on which all ranks of a model agree; nothing that
it decides may depend on the time of day. So the times are kept here, and coarsely.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from depcache.cache import Node

STEP_S = 0.1
# How far the time of an old tick may be off, as a part of its age.
COARSENESS = 0.01
# At this coarseness about 1,700 entries say all of a year; the rest is room for new ones, so that
# thinning out, a millisecond's work, is done every few minutes at most.
MAX_ENTRIES = 4096
# The mean is of about so many evicted tokens, the latest most.
MEAN_TOKENS = 10_000


class TickClock:
    """When a tick was: exact to `STEP_S`, or to `COARSENESS` of its age where that is more.

    One entry for each `STEP_S` in which the tree's clock moved, thinned out when there are too
    many.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ticks = [0]
        self._times = [clock()]

    def __len__(self) -> int:
        """Entries that are kept."""
        return len(self._ticks)

    def note(self, tick: int) -> None:
        """The tree's clock just moved to `tick`."""
        now = self._clock()
        if now - self._times[-1] < STEP_S:
            return
        self._ticks.append(tick)
        self._times.append(now)
        if len(self._ticks) > MAX_ENTRIES:
            self._thin_out(now)

    def seconds_since(self, tick: int) -> float:
        """How long ago `tick` was, rather too long than too short. O(log entries)."""
        return self._clock() - self._times[bisect_right(self._ticks, tick) - 1]

    def _thin_out(self, now: float) -> None:
        """Forget entries whose ticks the one before them tells well enough."""
        kept = [len(self._times) - 1]  # newest first
        for entry in range(len(self._times) - 2, 0, -1):
            above = self._times[kept[-1]]
            if above - self._times[entry - 1] > COARSENESS * (now - above):
                kept.append(entry)
        kept.append(0)
        kept.reverse()
        self._ticks = [self._ticks[entry] for entry in kept]
        self._times = [self._times[entry] for entry in kept]


@dataclass(slots=True)
class _Age:
    mean_s: float
    last_s: float


class IdleAges:
    """Watches a tree: seconds between the last use of a node and its eviction, per tier.

    Short ages mean that KV is thrown away that may still be wanted (vLLM's
    `kv_block_idle_before_evict_seconds` says the same of its blocks).
    """

    def __init__(self, clock: TickClock | None = None) -> None:
        self._clock = clock or TickClock()
        self._ages: dict[str, _Age] = {}

    def note_tick(self, tick: int) -> None:
        """The tree's clock just moved to `tick`."""
        self._clock.note(tick)

    def note_eviction(self, tier: str, node: Node) -> None:
        """`node` loses its KV in `tier`, because the room is needed."""
        idle_s = self._clock.seconds_since(node.last_use)
        age = self._ages.get(tier)
        if age is None:
            self._ages[tier] = _Age(idle_s, idle_s)
            return
        age.mean_s += (idle_s - age.mean_s) * -math.expm1(-node.num_tokens / MEAN_TOKENS)
        age.last_s = idle_s

    def describe(self, tier: str) -> dict[str, float] | None:
        """Seconds: the mean by tokens, the latest most, and the last; None before any eviction."""
        age = self._ages.get(tier)
        return None if age is None else {"mean_s": age.mean_s, "last_s": age.last_s}
