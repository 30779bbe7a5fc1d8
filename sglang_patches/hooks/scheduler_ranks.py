# SPDX-License-Identifier: Apache-2.0
"""Hook on the making of a prefill batch: the ranks of a server compare what they have decided.

Why: each rank matches and evicts for itself. A batch for which they differ must not run, and here
it is made and not yet launched.
Unnecessary when one rank decides for all.
"""

from __future__ import annotations

from typing import Any

from sglang_patches.contract import Scheduler


def compare_ranks(result: Any, scheduler: Scheduler, *args: Any, **kwargs: Any) -> None:
    """Compare, where there is or was something to run: all ranks or none come here."""
    cache = scheduler.tree_cache
    if getattr(cache, "is_depcache", False) and (result[0] is not None or scheduler.waiting_queue):
        cache.ranks.compare()


HOOKS = {
    "sglang.srt.managers.scheduler.Scheduler._get_new_batch_prefill_raw": ("AFTER", compare_ranks)
}
