# SPDX-License-Identifier: Apache-2.0
"""Hooks on the scheduler and the batch do their work for our cache, and nothing for a stock one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_patches.hooks.forward_batch import set_positions
from sglang_patches.hooks.schedule_policy import show_queue
from sglang_patches.hooks.scheduler_abort import release_orphans
from sglang_patches.hooks.scheduler_state import add_depcache_state
from sglang_patches.http.control import make_question

pytestmark = pytest.mark.sglang


class Cache:
    """Ours or a stock one; `seen` is what it was told."""

    def __init__(self, *, is_depcache: bool, hides_counts: bool = False) -> None:
        if is_depcache:
            self.is_depcache = True
        self.hides_counts = hides_counts
        self.seen: list[Any] = []
        self.waiting_queue = SimpleNamespace(
            sync=lambda queue: self.seen.append(("sync", queue)),
        )

    def describe(self) -> dict[str, int]:
        return {"cached_tokens": 7}

    def forget_gone(self, queue: Any) -> None:
        self.seen.append(("forget", queue))


QUEUE = ["a request"]


def scheduler_of(cache: Cache) -> Any:
    return SimpleNamespace(tree_cache=cache, waiting_queue=QUEUE)


def state_of(cache: Cache, rid: str | None = None) -> dict[str, Any]:
    result = SimpleNamespace(internal_state={"load": 1})
    add_depcache_state(result, scheduler_of(cache), SimpleNamespace(rid=rid))
    return result.internal_state


def test_a_stock_cache_is_told_nothing_and_its_batch_is_left_alone() -> None:
    stock = Cache(is_depcache=False)
    show_queue(None, scheduler_of(stock), QUEUE)  # pyright: ignore[reportArgumentType]
    release_orphans(None, scheduler_of(stock))
    batch: Any = SimpleNamespace(tree_cache=stock)
    forward_batch: Any = SimpleNamespace()
    set_positions(forward_batch, object, batch)
    assert stock.seen == []
    assert vars(forward_batch) == {}
    assert state_of(stock) == {"load": 1}


def test_ours_sees_the_queue_that_is_sorted_and_what_has_left_it() -> None:
    ours = Cache(is_depcache=True)
    show_queue(None, scheduler_of(ours), QUEUE)  # pyright: ignore[reportArgumentType]
    release_orphans(None, scheduler_of(ours))
    assert ours.seen == [("sync", QUEUE), ("forget", QUEUE)]


def test_the_state_of_ours_joins_sglangs() -> None:
    found = state_of(Cache(is_depcache=True))
    assert found == {"load": 1, "depcache": {"cache": {"cached_tokens": 7}}}


def test_private_counts_join_only_where_one_of_our_routes_asks() -> None:
    ours = Cache(is_depcache=True, hides_counts=True)
    for rid in (None, "", "somebody's request"):
        assert state_of(ours, rid) == {"load": 1}
    told = state_of(ours, make_question({"ask": "state"}))
    assert told["depcache"] == {"cache": {"cached_tokens": 7}, "reply": {}}


def test_a_question_that_goes_wrong_is_an_answer_and_the_state_comes_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = state_of(Cache(is_depcache=True), make_question({"ask": "colour"}))["depcache"]
    assert found["cache"] == {"cached_tokens": 7}
    assert "could not be answered (KeyError: 'colour')" in found["fault"]
    assert "reply" not in found
