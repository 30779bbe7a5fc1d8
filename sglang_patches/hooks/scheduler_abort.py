# SPDX-License-Identifier: Apache-2.0
"""Hooks on the three ways a request leaves the waiting queue without running.

Why: a matched request may hold slots for shifted hits although it was not admitted in the
end, and its look-ahead would stay if it was the last one that waited: SGLang makes no pass
over an empty queue. 0.5.17 tells the cache about such aborts only with a HiCache storage backend.
Unnecessary, and not there, with 0.5.23, which tells every cache (`checkpoints.Checkpoints.finish`).
"""

from __future__ import annotations

from typing import Any

from sglang_patches.compat import ABORT_FUNCTIONS
from sglang_patches.contract import Scheduler


def release_orphans(result: Any, scheduler: Scheduler, *args: Any, **kwargs: Any) -> None:
    """Let our cache forget requests that are gone, and free what they had allocated."""
    if getattr(scheduler.tree_cache, "is_depcache", False):
        scheduler.tree_cache.forget_gone(scheduler.waiting_queue)


_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
HOOKS = {f"{_SCHEDULER}.{name}": ("AFTER", release_orphans) for name in ABORT_FUNCTIONS}
