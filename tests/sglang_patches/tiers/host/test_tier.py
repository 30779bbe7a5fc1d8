# SPDX-License-Identifier: Apache-2.0
"""Tier HOST: bits survive the way there and back, and no slot is given out twice."""

from __future__ import annotations

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depcache.errors import ConfigError
from sglang_patches.tiers.host.pool import GB, bytes_per_token
from sglang_patches.tiers.host.tier import HostTier
from tests.sglang_patches.tiers.disk.make import DTYPES, bits, make_pool, scattered

pytestmark = pytest.mark.sglang

# Odd shapes too: rows whose bytes no wide integer divides.
SHAPES = ((1, 8, 1), (2, 16, 3), (3, 5, 2), (1, 1, 1), (8, 128, 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_heads", "head_dim", "num_layers"), SHAPES)
def test_rows_come_back_bit_for_bit(dtype, num_heads, head_dim, num_layers):
    pool = make_pool(dtype, num_heads=num_heads, head_dim=head_dim, num_layers=num_layers)
    tier = HostTier(pool, 100 * bytes_per_token(pool))
    rng = np.random.default_rng(1)
    source, target = scattered(rng, 20, 64), scattered(rng, 20, 64)
    wanted, before = bits(pool, source), bits(pool, np.arange(65))
    host = rng.permutation(tier.alloc(40))[:20]  # scattered on this side as well

    tier.store(source, host)
    assert np.array_equal(bits(pool, np.arange(65)), before)
    for buffer in (*pool.k_buffer, *pool.v_buffer):
        buffer.zero_()
    tier.load(host, target)

    assert np.array_equal(bits(pool, target), wanted)
    others = np.setdiff1d(np.arange(65), target)
    assert not bits(pool, others).any()


def test_more_rows_than_fit_in_a_piece_come_back():
    pool = make_pool(torch.bfloat16, num_tokens=3000, num_heads=8, head_dim=128, num_layers=2)
    tier = HostTier(pool, 3000 * bytes_per_token(pool))
    rng = np.random.default_rng(1)
    source, target = scattered(rng, 1500, 3000), scattered(rng, 1500, 3000)
    wanted = bits(pool, source)
    host = rng.permutation(tier.alloc(3000))[:1500]
    tier.store(source, host)
    for layer in (None, 0, 1):
        tier.load(host, target, layer)
    assert np.array_equal(bits(pool, target), wanted)


def test_one_layer_is_loaded_alone():
    pool = make_pool(torch.bfloat16)
    tier = HostTier(pool, 50 * bytes_per_token(pool))
    source = np.arange(1, 11)
    host = tier.alloc(10)
    tier.store(source, host)
    wanted = [pool.k_buffer[layer][source].clone() for layer in range(3)]
    for buffer in (*pool.k_buffer, *pool.v_buffer):
        buffer.zero_()
    target = np.arange(30, 40)

    tier.load(host, target, 1)

    assert not pool.k_buffer[0].any() and not pool.k_buffer[2].any()
    same_bits = pool.k_buffer[1][target].view(torch.int16) == wanted[1].view(torch.int16)
    assert same_bits.all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_are_the_rows_of_the_pool(dtype):
    pool = make_pool(dtype)
    tier = HostTier(pool, 30 * bytes_per_token(pool))
    source = scattered(np.random.default_rng(2), 12, 64)
    host = tier.alloc(12)[::-1].copy()
    tier.store(source, host)

    rows = tier.read(host)

    assert rows.shape == (12, tier.bytes_per_token)
    assert np.array_equal(rows, bits(pool, source))  # keys of all layers, then values
    other = tier.alloc(5)
    tier.write(other, rows[3:8])
    assert np.array_equal(tier.read(other), rows[3:8])
    assert np.array_equal(tier.read(host), rows)


def test_nothing_moves_for_no_slots():
    pool = make_pool()
    tier = HostTier(pool, 10 * bytes_per_token(pool))
    none = np.empty(0, np.int64)
    tier.store(none, none)
    assert tier.load(none, none).is_done()
    assert tier.read(none).shape == (0, tier.bytes_per_token)
    assert len(tier.alloc(0)) == 0


def test_capacity_is_what_was_asked_for():
    pool = make_pool()
    for num in (1, 7, 100):
        tier = HostTier(pool, num * bytes_per_token(pool) + 3)
        assert tier.num_tokens == tier.num_free == num
        slots = tier.alloc(num)
        assert sorted(slots) == list(range(num))
        assert tier.alloc(1) is None
        tier.free(slots)
        assert tier.num_free == num


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=40))
def test_slots_are_conserved(steps):
    tier = _tier_of_30()
    tier.clear()
    held: list[np.ndarray] = []
    for is_alloc, num in steps:
        if is_alloc:
            free = tier.num_free
            slots = tier.alloc(num)
            assert (slots is None) == (num > free)
            if slots is not None:
                held.append(slots)
        elif held:
            tier.free(held.pop(num % len(held)))
        used = np.concatenate([np.empty(0, np.int64), *held])
        assert len(np.unique(used)) == len(used)
        assert tier.num_free + len(used) == 30


_tiers: list[HostTier] = []


def _tier_of_30() -> HostTier:
    if not _tiers:
        pool = make_pool()
        _tiers.append(HostTier(pool, 30 * bytes_per_token(pool)))
    return _tiers[0]


def test_a_slot_freed_twice_is_noticed():
    pool = make_pool()
    tier = HostTier(pool, 10 * bytes_per_token(pool))
    slots = tier.alloc(2)
    tier.free(slots)
    with pytest.raises(AssertionError, match="Double-free"):
        tier.free(slots)


def test_more_than_the_memory_is_refused_before_it_is_taken():
    pool = make_pool()
    before = psutil.Process().memory_info().rss
    with pytest.raises(ConfigError, match=r"host_gb asks for .* use at most"):
        HostTier(pool, psutil.virtual_memory().total)
    assert psutil.Process().memory_info().rss - before < GB // 10


def test_less_than_a_token_is_refused():
    with pytest.raises(ConfigError, match="one token"):
        HostTier(make_pool(), 100)


def test_pools_of_another_kind_are_refused():
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    paged = MHATokenToKVPool(64, 16, torch.float32, 2, 16, 2, "cpu", enable_memory_saver=False)
    with pytest.raises(ConfigError, match="page size 16"):
        HostTier(paged, GB)
    uneven = MHATokenToKVPool(
        64, 1, torch.float32, 2, 16, 2, "cpu", enable_memory_saver=False, v_head_dim=8
    )
    with pytest.raises(ConfigError, match="16 and values of 8"):
        HostTier(uneven, GB)
