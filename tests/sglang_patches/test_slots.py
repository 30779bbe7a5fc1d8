# SPDX-License-Identifier: Apache-2.0
"""Slots of SGLang's own pools: none is lost or given out twice, and room is made where it lacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.rows import row_holder

pytestmark = pytest.mark.sglang

CAPACITY, NUM_ROWS, ROW_LEN = 64, 3, 16


class Cached:
    """Slots that a cache would give up, and how many it was asked for."""

    def __init__(self) -> None:
        self.slots: Any = None
        self.held: list[np.ndarray] = []
        self.asked: list[int] = []

    def make_room(self, num_tokens: int) -> None:
        self.asked.append(num_tokens)
        while self.held and num_tokens > 0:
            given = self.held.pop()
            self.slots.free(given)
            num_tokens -= len(given)


def make() -> tuple[Any, Cached]:
    import torch
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool

    from sglang_patches.slots import Slots

    pool = MHATokenToKVPool(
        size=CAPACITY, page_size=1, dtype=torch.float32, head_num=1, head_dim=2, layer_num=1,
        device="cpu", enable_memory_saver=False,
    )  # fmt: skip
    allocator = TokenToKVPoolAllocator(
        CAPACITY, dtype=torch.float32, device="cpu", kvcache=pool, need_sort=False
    )
    rows = ReqToTokenPool(NUM_ROWS, ROW_LEN, "cpu", enable_memory_saver=False)
    cached = Cached()
    params: Any = SimpleNamespace(req_to_token_pool=rows, token_to_kv_pool_allocator=allocator)
    cached.slots = Slots(params, cached.make_room)
    return cached.slots, cached


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(0, 20), max_size=12), keeps=st.lists(st.booleans(), max_size=12))
def test_free_and_given_out_are_all_of_the_slots(sizes: list[int], keeps: list[bool]) -> None:
    slots, _ = make()
    given_out: list[np.ndarray] = []
    for size, keep in zip(sizes, keeps, strict=False):
        found = slots.alloc(size)
        if found is None:
            assert size > slots.num_free
            continue
        assert (len(found), found.dtype) == (size, np.int64)
        given_out.append(found)
        if not keep:
            slots.free(given_out.pop(0))
        held = np.concatenate([*given_out, np.empty(0, np.int64)])
        assert len(set(held.tolist())) == len(held)
        assert slots.num_free + len(held) == slots.capacity == CAPACITY


def test_room_is_made_for_what_lacks_and_no_more_is_asked_for() -> None:
    slots, cached = make()
    cached.held = [slots.alloc(30), slots.alloc(30)]
    assert len(slots.alloc(4)) == 4
    assert cached.asked == []
    assert len(slots.alloc(25)) == 25
    assert cached.asked == [25]
    assert slots.num_free == 5
    assert slots.alloc(60) is None
    assert slots.num_free == 35  # what was made room for stays free


def test_a_row_is_read_as_it_was_written_and_a_copy_stays_as_it_was() -> None:
    slots, _ = make()
    req = row_holder(1)
    slots.write_row(req, 0, np.arange(5, 9))
    kept = slots.row_on_device(req, 4)
    slots.write_row(req, 2, np.array([50, 51]))
    assert slots.row(req, 4).tolist() == [5, 6, 50, 51]
    assert slots.row(req, 4).dtype == np.int64
    assert kept.tolist() == [5, 6, 7, 8]
    assert slots.row(row_holder(2), 4).tolist() == [0, 0, 0, 0]


def test_no_slots_are_an_empty_tensor_and_freeing_them_does_nothing() -> None:
    slots, _ = make()
    none = np.empty(0, np.int64)
    before = slots.num_free
    slots.free(none)
    assert slots.num_free == before
    assert slots.to_device(none).shape == (0,)
    assert slots.to_device(np.array([3, 1])).tolist() == [3, 1]
