# SPDX-License-Identifier: Apache-2.0
"""The scheduler's loop gives way to the disk tier's threads when it has nothing else to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.sglang


def make_scheduler(
    *, num_open: int = 1, running: int = 0, last_batch: Any = None, chunked_req: Any = None
) -> Any:
    disk = SimpleNamespace(tier=SimpleNamespace(num_open=num_open))
    told: list[bool] = []
    cache = SimpleNamespace(
        is_depcache=True,
        disk=disk,
        root_events=None,
        poll=lambda is_waited_for, is_idle: told.append(is_idle),
        told=told,
    )
    return SimpleNamespace(
        tree_cache=cache,
        waiting_queue=[],
        last_batch=last_batch,
        chunked_req=chunked_req,
        running_batch=SimpleNamespace(is_empty=lambda: not running),
    )


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    from sglang_patches.hooks import scheduler_disk

    sleeps: list[float] = []
    monkeypatch.setattr(scheduler_disk.time, "sleep", sleeps.append)
    return sleeps


def poll(scheduler: Any) -> bool:
    """Returns whether the disk tier was told that nothing runs."""
    from sglang_patches.hooks.scheduler_disk import poll_tiers

    poll_tiers(scheduler)
    [is_idle] = scheduler.tree_cache.told
    return is_idle


def test_an_idle_loop_gives_way_while_transfers_are_under_way(slept: list[float]) -> None:
    assert poll(make_scheduler())
    assert len(slept) == 1
    assert 0 < slept[0] <= 0.002


@pytest.mark.parametrize(
    "busy",
    [
        {"num_open": 0},
        {"running": 1},
        {"last_batch": object()},
        {"chunked_req": object()},
    ],
    ids=["no transfer", "a batch decodes", "a result waits", "a prefill goes on"],
)
def test_whoever_has_something_to_do_is_not_held_up(
    slept: list[float], busy: dict[str, Any]
) -> None:
    assert poll(make_scheduler(**busy)) == ("num_open" in busy)
    assert not slept
