# SPDX-License-Identifier: Apache-2.0
"""Hooks for weights that are replaced while the server runs.

Why: SGLang empties the cache after new weights and asserts that it could, which it cannot while
a request holds some of it. One whose client has just gone is such a request: its lock on the
weights is free at once, and the scheduler works on it for some steps more. The assertion ends
the server. Here the update waits for the last request, as an update does whose requests' clients
have stayed, and is refused where it would wait for ever. And KV on disk is of the old weights.
Unnecessary when SGLang waits itself, and tells its cache of new weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_patches.contract import Scheduler

_ATTRIBUTE = "depcache_weight_updates"
"""The scheduler's updates that wait, in the order in which they came."""


def update_when_idle(original: Callable[..., Any], updater: Any, recv_req: Any) -> Any:
    """Update the weights now, later (None: no reply yet), or say why it cannot be done."""
    scheduler = _scheduler_of(updater)
    if scheduler is None or not recv_req.flush_cache or scheduler.is_fully_idle():
        return original(updater, recv_req)
    if scheduler._engine_paused:  # pyright: ignore[reportPrivateUsage]
        return _refuse(recv_req)
    waiting = getattr(scheduler, _ATTRIBUTE, [])
    setattr(scheduler, _ATTRIBUTE, [*waiting, recv_req])
    return None


def resume_updates(scheduler: Scheduler, recv_reqs: list[Any]) -> None:
    """Give the scheduler the updates that wait for it again, before all that comes after them."""
    waiting = getattr(scheduler, _ATTRIBUTE, None)
    is_paused = scheduler._engine_paused  # pyright: ignore[reportPrivateUsage]
    if waiting and (is_paused or scheduler.is_fully_idle()):
        setattr(scheduler, _ATTRIBUTE, [])
        recv_reqs[:0] = waiting


def note_new_weights(updater: Any, *args: Any, **kwargs: Any) -> None:
    """Weights are being replaced while the server runs: the disk holds KV of the old ones."""
    scheduler = _scheduler_of(updater)
    if scheduler is not None:
        scheduler.tree_cache.note_new_weights()


def _scheduler_of(updater: Any) -> Scheduler | None:
    """The scheduler whose weights these are, or None if its cache is not ours."""
    scheduler = getattr(updater.flush_cache, "__self__", None)
    is_ours = getattr(getattr(scheduler, "tree_cache", None), "is_depcache", False)
    return scheduler if is_ours else None


def _refuse(recv_req: Any) -> Any:
    from sglang.srt.managers import io_struct

    name = type(recv_req).__name__.removesuffix("Input") + "Output"
    return getattr(io_struct, name)(
        success=False,
        message="The weights cannot be replaced while generation is paused in the middle of "
        "requests, because their KV is of the old weights: continue it first, abort the "
        'requests (/pause_generation with "mode": "abort"), or send "flush_cache": false.',
    )


_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
HOOKS = {
    f"{_SCHEDULER}.process_input_requests": ("BEFORE", resume_updates),
    f"{_UPDATER}.update_weights_from_disk": ("AROUND", update_when_idle),
    f"{_UPDATER}.update_weights_from_distributed": ("AROUND", update_when_idle),
    f"{_UPDATER}.update_weights_from_ipc": ("AROUND", update_when_idle),
    f"{_UPDATER}.update_weights_from_tensor": ("AROUND", update_when_idle),
    # All four ways to replace weights go through it.
    f"{_UPDATER}._observe_weight_load": ("BEFORE", note_new_weights),
}
