# SPDX-License-Identifier: Apache-2.0
"""A request's end, which 0.5.23 takes apart, is served in one go, and once.

The calls here are those of `release_kv_cache` and `checkpoint_kv_cache`, in their order. The real
ones make them in `tests/e2e` on 0.5.23.
"""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("sglang")

from sglang_patches import compat
from sglang_patches.checkpoints import Checkpoints

pytestmark = pytest.mark.sglang

NUM_TOKENS = 6


class Cache(Checkpoints):
    """Notes what it is asked for, as a cache of 0.5.17 is."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def keep_computed(self, req: Any, num_rows: int, *, is_last: bool) -> None:
        self.seen.append(("keep", req.rid, num_rows, is_last))

    def cache_finished_req(
        self, req: Any, is_insert: bool = True, *, kv_len_to_handle: int
    ) -> None:
        self.seen.append(("finish", req.rid, kv_len_to_handle, is_insert))

    def release_aborted_request(self, rid: Any) -> None:
        self.seen.append(("release", rid.rid))

    def forget_waiting(self, rid: str) -> None:
        self.seen.append(("forget", rid))


@pytest.fixture
def cache() -> Cache:
    return Cache()


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Ranges that SGLang's own way of freeing was asked for."""
    found: list[Any] = []
    monkeypatch.setattr(
        "sglang.srt.mem_cache.base_prefix_cache.BasePrefixCache.free_kv_row",
        lambda self, kv, ranges: found.append(ranges),
        raising=False,
    )
    return found


def make_req(rid: str) -> Any:
    return SimpleNamespace(
        rid=rid,
        full_untruncated_fill_ids=array("q", range(NUM_TOKENS)),
        cache_protected_len=2,
        kv=SimpleNamespace(cache_protected_len=2),
    )


def release(cache: Cache, req: Any, num_rows: int, *, checkpoint: bool, left_over: int = 0) -> None:
    """As SGLang's `release_kv_cache`."""
    assert not cache.claim_kv_row(req)
    if checkpoint:
        cache.checkpoint(req, up_to=num_rows)
    cache.free_kv_row(req.kv, [(compat.protected_len(req), num_rows)])
    if left_over:
        cache.free_kv_row(req.kv, [(num_rows, num_rows + left_over)])


def test_a_running_request_is_cached_and_nothing_is_freed(cache: Cache, freed: list[Any]) -> None:
    req = make_req("a")
    cache.checkpoint(req, up_to=4)
    cache.checkpoint(req, up_to=NUM_TOKENS)
    assert cache.seen == [("keep", "a", 4, False), ("keep", "a", NUM_TOKENS, True)]
    assert freed == []


def test_one_that_ends_is_cached_once_and_leaves_nothing_to_free(
    cache: Cache, freed: list[Any]
) -> None:
    release(cache, make_req("a"), 7, checkpoint=True)
    assert cache.seen == [("finish", "a", 7, True)]
    assert freed == []


def test_one_that_is_retracted_is_freed_and_not_cached(cache: Cache, freed: list[Any]) -> None:
    release(cache, make_req("a"), 5, checkpoint=False)
    assert cache.seen == [("finish", "a", 5, False)]
    assert freed == []


@pytest.mark.parametrize("checkpoint", [True, False])
def test_rows_beyond_the_answer_are_freed_in_sglangs_own_way(
    cache: Cache, freed: list[Any], checkpoint: bool
) -> None:
    release(cache, make_req("a"), 5, checkpoint=checkpoint, left_over=3)
    assert cache.seen == [("finish", "a", 5, checkpoint)]
    assert freed == [[(5, 8)]]


def test_releases_follow_each_other(cache: Cache, freed: list[Any]) -> None:
    release(cache, make_req("a"), 5, checkpoint=False)
    cache.checkpoint(make_req("b"), up_to=3)
    release(cache, make_req("c"), 6, checkpoint=True)
    assert [each[:2] for each in cache.seen] == [("finish", "a"), ("keep", "b"), ("finish", "c")]
    assert freed == []


def test_the_prefix_is_what_was_matched_and_loaded(cache: Cache) -> None:
    req = SimpleNamespace(prefix_len=4)
    setattr(req, compat.PREFIX, torch.arange(10, 15))
    assert cache.prefix_device_indices(req).tolist() == [10, 11, 12, 13]  # pyright: ignore


def test_an_abort_is_told_and_a_success_is_not(cache: Cache) -> None:
    handle = SimpleNamespace(rid="a")
    cache.finish(handle, SimpleNamespace(name="SUCCESS"))
    assert cache.seen == []
    cache.finish(handle, SimpleNamespace(name="ABORT"))
    assert cache.seen == [("release", "a"), ("forget", "a")]
