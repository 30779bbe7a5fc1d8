# SPDX-License-Identifier: Apache-2.0
"""Hook on the ordering of the waiting queue: look-ahead, and orders by dependency hits.

Why: the cache is never shown the queue, and SGLang's cache-aware orders count linear prefixes.
Every scheduling pass calls `calc_priority` on the list before it admits from it.
Unnecessary when a prefix cache is told of the queue and may give a request's matched tokens.
"""

from __future__ import annotations

from typing import Any

from sglang_patches.contract import Request


def show_queue(
    result: Any, policy: Any, waiting_queue: list[Request], *args: Any, **kwargs: Any
) -> None:
    """Let our cache see the queue, and sort it if it is to."""
    if getattr(policy.tree_cache, "is_depcache", False):
        policy.tree_cache.waiting_queue.sync(waiting_queue)


HOOKS = {"sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority": ("AFTER", show_queue)}
