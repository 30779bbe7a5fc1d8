# SPDX-License-Identifier: Apache-2.0
"""Traces: what became of each segment of a prompt, told only while somebody watches.

A trace travels with the report of its request to the process that serves HTTP, which takes it off
again. The scheduler keeps nothing but the time until which it is being watched.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from depcache.cache.radix import to_key
from sglang_patches.requests.state import RequestState

TRACE = "trace"
"""Where a report has the trace, between the two processes."""


class Watch:
    """Whether somebody watches: for so long as they keep asking.

    now  a clock in seconds
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until = 0.0

    @property
    def is_on(self) -> bool:
        return self._until > 0 and self._now() < self._until

    def keep_on(self, seconds: float) -> None:
        """Watch for so long from now; 0 ends it."""
        self._until = self._now() + seconds


def make_trace(state: RequestState) -> dict[str, Any]:
    """The trace of a request that was admitted, as bytes, for it is pickled twice on its way.

    tokens   int32 (num_tokens,) in pre-order
    lens, parents  int32 (num_segments,) as on the wire
    joins    joined root -> the segments that it sees
    sources  int32 (num_segments, 4) tokens shared, shifted, loaded and missed; the system is in
             front if there is one
    done_s   `time.perf_counter`, the same in all processes of a machine, when all was computed
    """
    assert state.plan is not None
    structure = state.structure
    return {
        "tokens": to_key(state.tokens),
        "system_len": structure.system_len,
        "lens": to_key(structure.lens),
        "parents": to_key(structure.parents),
        "joins": dict(structure.joins),
        "sources": to_key(state.plan.rows.by_segment(state.table)),
        "tenant": state.namespace.tenant,
        "done_s": time.perf_counter(),
    }


def sources_of(trace: dict[str, Any]) -> np.ndarray:
    """(num_segments, 4) int32, see `make_trace`."""
    return np.frombuffer(trace["sources"], "<i4").reshape(-1, 4)
