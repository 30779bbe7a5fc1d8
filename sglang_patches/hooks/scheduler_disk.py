# SPDX-License-Identifier: Apache-2.0
"""Hooks that let the disk tier work beside the scheduler: every pass, and at queue entry.

Root events are sent in the same pass.

Why: SGLang polls a cache's transfers, prefetches for a waiting request and holds it back until
its KV has come only if its own HiCache is on, and then in terms of pages along one prefix. The
flag alone makes the scheduler ask the cache whether a request may go; the rest is done here.
Unnecessary when these calls are made for every cache that has them, with the request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sglang_patches.contract import Request, Scheduler

# Longer than a thread needs for a value, shorter than anyone notices.
YIELD_S = 0.001


def poll_tiers(scheduler: Scheduler, *args: Any, **kwargs: Any) -> None:
    """Conclude transfers, and let the scheduler ask before it admits a request."""
    cache = scheduler.tree_cache
    if not getattr(cache, "is_depcache", False):
        return
    if cache.root_events is not None:
        cache.root_events.poll()
    if cache.disk is not None:
        scheduler.enable_hicache_storage = True
        is_idle = _has_nothing_to_run(scheduler)
        cache.poll(is_waited_for=bool(scheduler.waiting_queue), is_idle=is_idle)
        if cache.disk.tier.num_open and is_idle:
            # The loop would spin, and every system call of the tier's threads would have to win
            # the interpreter's lock back from it: a prompt of 2,000 tokens in 330 values then
            # takes several times as long to come.
            time.sleep(YIELD_S)


def _has_nothing_to_run(scheduler: Scheduler) -> bool:
    """Whether no batch runs and no result waits: this pass can only admit what is waiting."""
    return (
        scheduler.last_batch is None
        and scheduler.chunked_req is None
        and scheduler.running_batch.is_empty()
    )


def prefetch(original: Callable[..., Any], scheduler: Scheduler, req: Request) -> None:
    """Ask our cache to fetch what the request will need."""
    if getattr(scheduler.tree_cache, "is_depcache", False):
        scheduler.tree_cache.prefetch(req)
    else:
        original(scheduler, req)


_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
HOOKS = {
    f"{_SCHEDULER}._get_new_batch_prefill_raw": ("BEFORE", poll_tiers),
    f"{_SCHEDULER}._prefetch_kvcache": ("AROUND", prefetch),
}
