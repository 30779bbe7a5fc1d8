# SPDX-License-Identifier: Apache-2.0
"""Tier DISK: what was stored comes back bit for bit, for the right asker, and within its space."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depcache.errors import ConfigError
from sglang_patches.tiers.disk.fingerprint import Fingerprint
from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.host.pool import bytes_per_token, row_shape
from sglang_patches.tiers.host.tier import HostTier
from tests.helpers.ends import SLOWEST_S
from tests.sglang_patches.tiers.disk.make import (
    DTYPES,
    MANY,
    ROWS,
    bits,
    load_one,
    make_entry,
    make_pool,
    make_print,
    make_rows,
    scattered,
    store_all,
)

pytestmark = pytest.mark.sglang


def bytes_in(tier):
    """What the values and the list of them take of the disk."""
    files = (*tier.folder.glob("values/*"), *tier.folder.glob("manifest-*"))
    return sum(file.stat().st_size for file in files)


@pytest.mark.parametrize("dtype", DTYPES)
def test_device_host_disk_host_device_keeps_every_bit(tmp_path, rng, dtype):
    pool = make_pool(dtype, num_tokens=100)
    host = HostTier(pool, 60 * bytes_per_token(pool))
    mark = Fingerprint({"model": "m"}, row_shape(pool))
    disk = DiskTier(mark, tmp_path, MANY, host_pool=host.pool)
    source, target = scattered(rng, 20, 100), scattered(rng, 20, 100)
    wanted = bits(pool, source)
    first = rng.permutation(host.alloc(40))[:20]
    host.store(source, first)
    entry = make_entry(mark, list(range(50)), 20)

    ticket = disk.store(entry, lambda out: host.read(first, out))
    (stored,) = disk.drain(SLOWEST_S)
    assert (stored.ticket, stored.is_ok) == (ticket, True)
    host.write(first, np.zeros((20, host.bytes_per_token), np.uint8))
    for buffer in (*pool.k_buffer, *pool.v_buffer):
        buffer.zero_()
    second = host.alloc(20)
    disk.load(stored.ref, entry.path, entry.namespace, into=lambda rows: host.write(second, rows))
    (loaded,) = disk.drain(SLOWEST_S)
    host.load(second, target)

    assert loaded.is_ok and loaded.rows is None
    assert np.array_equal(bits(pool, target), wanted)
    assert not bits(pool, np.setdiff1d(np.arange(101), target)).any()
    disk.close()


def test_a_range_of_a_split_node_is_its_rows(tmp_path, rng):
    mark = make_print()
    tier = DiskTier(mark, tmp_path, MANY)
    rows = make_rows(rng, 9, ROWS.num_bytes)
    entry = make_entry(mark, list(range(15)), 9)
    (ref,) = store_all(tier, [(entry, rows)])

    upper, lower = ref.split(4)
    middle, last = lower.split(3)

    for part, start, stop in ((upper, 0, 4), (middle, 4, 7), (last, 7, 9), (ref, 0, 9)):
        assert part.path_len == 6 + stop
        loaded = load_one(tier, part, entry)
        assert loaded.is_ok
        assert np.array_equal(loaded.rows, rows[start:stop])
    with pytest.raises(ValueError, match="split"):
        upper.split(4)
    tier.close()


def test_a_value_goes_with_the_last_of_its_tokens(tmp_path, rng):
    mark = make_print()
    tier = DiskTier(mark, tmp_path, MANY)
    entry = make_entry(mark, list(range(10)), 6)
    (ref,) = store_all(tier, [(entry, make_rows(rng, 6, ROWS.num_bytes))])
    upper, lower = ref.split(2)
    files = list(tier.folder.glob("values/*"))
    assert len(files) == 1

    tier.delete(lower)
    tier.drain(SLOWEST_S)
    assert load_one(tier, upper, entry).is_ok and files[0].exists()
    tier.delete(upper)
    tier.drain(SLOWEST_S)

    assert not files[0].exists()
    assert tier.used_bytes == tier.num_values == 0
    assert load_one(tier, upper, entry).reason == "at once"
    assert tier.misses == {"missing": 1}
    tier.close()


def test_storing_again_finds_what_is_there(tmp_path, rng):
    mark = make_print()
    tier = DiskTier(mark, tmp_path, MANY)
    node = (make_entry(mark, [1, 2, 3], 2), make_rows(rng, 2, ROWS.num_bytes))
    (first,) = store_all(tier, [node])
    used = tier.used_bytes
    (second,) = store_all(tier, [node])
    assert first == second
    assert tier.used_bytes == used
    assert tier.counters["stored"] == 1
    tier.close()


def test_the_limit_in_bytes_always_holds(tmp_path, rng):
    mark = make_print()
    size = DiskTier(mark, tmp_path / "other", MANY).num_bytes(5, 2)
    tier = DiskTier(mark, tmp_path, 3 * size + size - 1)
    nodes = [
        (make_entry(mark, [9, 9, 9, i, 1], 2), make_rows(rng, 2, ROWS.num_bytes)) for i in range(5)
    ]
    tickets = [tier.store(*node) for node in nodes]  # no waiting: reserved bytes count
    assert [ticket is not None for ticket in tickets] == [True] * 3 + [False] * 2
    assert tier.dropped == {"full": 2}
    refs = [one.ref for one in tier.drain(SLOWEST_S)]
    assert bytes_in(tier) <= tier.used_bytes == 3 * size

    tier.delete(refs[0])
    assert tier.store(*nodes[4]) is not None
    tier.drain(SLOWEST_S)
    assert bytes_in(tier) <= tier.used_bytes == 3 * size
    tier.close()


def test_clearing_leaves_nothing_not_even_what_is_on_its_way(tmp_path, rng):
    mark = make_print()
    tier = DiskTier(mark, tmp_path, MANY)
    nodes = [(make_entry(mark, [i], 1), make_rows(rng, 1, ROWS.num_bytes)) for i in range(40)]
    store_all(tier, nodes[:20])
    tickets = [tier.store(*node) for node in nodes[20:]]
    tier.clear()
    finished = tier.drain(SLOWEST_S)
    assert sorted(one.ticket for one in finished) == sorted(tickets)
    assert {one.reason for one in finished} == {"cleared"}
    assert tier.used_bytes == tier.num_values == 0
    assert not list(tier.folder.glob("values/*"))
    assert not list(tier.entries())
    tier.close()


def test_salts_and_tokens_are_in_no_name_and_no_salt_in_any_file(tmp_path, rng):
    mark = make_print()
    tier = DiskTier(mark, tmp_path, MANY)
    salt = "secret-of-tenant"
    entry = make_entry(mark, [1, 2], 1, namespace=(salt, "tree"))
    store_all(tier, [(entry, make_rows(rng, 1, ROWS.num_bytes))])
    tier.close()
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) == 4  # the value, the manifest, the fingerprint and the lock
    for file in files:
        assert salt not in str(file)
        assert salt.encode() not in file.read_bytes()


def test_no_other_namespace_gets_a_value(tmp_path, rng):
    mark = make_print()
    tier = DiskTier(mark, tmp_path, MANY)
    path = list(range(7))
    spaces = [(None, "tree"), ("a", "tree"), ("b", "tree"), ("a", "sequential"), ("", "tree")]
    entries = [make_entry(mark, path, 3, namespace=space) for space in spaces]
    rows = [make_rows(rng, 3, ROWS.num_bytes) for _ in spaces]
    refs = store_all(tier, list(zip(entries, rows, strict=True)))
    assert len(set(refs)) == len(spaces)
    for i, ref in enumerate(refs):
        for j, entry in enumerate(entries):
            loaded = load_one(tier, ref, entry)
            assert loaded.is_ok == (i == j)
            if i == j:
                assert np.array_equal(loaded.rows, rows[i])
    assert tier.misses == {"namespace": 20}
    tier.close()


def test_no_other_path_gets_a_value(tmp_path, rng):
    mark = make_print()
    tier = DiskTier(mark, tmp_path, MANY)
    entry = make_entry(mark, [1, 2, 3, 4], 2)
    (ref,) = store_all(tier, [(entry, make_rows(rng, 2, ROWS.num_bytes))])
    for other in ([1, 2, 3, 5], [9, 2, 3, 4], [1, 2, 3]):
        path = np.array(other, "<i4").tobytes()
        tier.load(ref, path, entry.namespace)
        assert not any(one.is_ok for one in tier.drain(SLOWEST_S))
        store_all(tier, [(entry, make_rows(rng, 2, ROWS.num_bytes))])
    assert tier.misses == {"tokens": 3}
    tier.close()


def test_wrong_settings_are_refused(tmp_path):
    mark = make_print()
    for backend in ("nixl", "hf3fs", "nonsense", "dynamic"):
        with pytest.raises(ConfigError, match="disk_"):
            DiskTier(mark, tmp_path, MANY, backend=backend)
    with pytest.raises(ConfigError, match="disk_gb"):
        DiskTier(mark, tmp_path, 0)


PATHS = [list(range(n)) for n in range(1, 5)] + [[7, *range(n)] for n in range(4)]
steps = st.lists(
    st.tuples(st.sampled_from(["store", "load", "delete", "restart"]), st.integers(0, 7)),
    max_size=40,
)


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(steps=steps, seed=st.integers(0, 2**16))
def test_any_sequence_agrees_with_a_dict(tmp_path_factory, steps, seed):
    folder = tmp_path_factory.mktemp("disk")
    rng = np.random.default_rng(seed)
    mark = make_print()
    capacity = 4 * 440
    tier = DiskTier(mark, folder, capacity)
    oracle: dict[int, tuple] = {}
    for verb, number in steps:
        entry = make_entry(mark, PATHS[number], 1)
        if verb == "store":
            tier.drain(30)
            rows = make_rows(rng, 1, ROWS.num_bytes)
            size = tier.num_bytes(len(PATHS[number]), 1)
            fits = size <= tier.free_bytes
            ticket = tier.store(entry, rows)
            finished = tier.drain(SLOWEST_S)
            assert (ticket is not None) == (number in oracle or fits)
            if number not in oracle and fits:
                oracle[number] = (finished[0].ref, rows)
        elif verb == "load" and number in oracle:
            loaded = load_one(tier, oracle[number][0], entry)
            assert loaded.is_ok
            assert np.array_equal(loaded.rows, oracle[number][1])
        elif verb == "delete" and number in oracle:
            tier.delete(oracle.pop(number)[0])
        elif verb == "restart":
            tier.close()
            tier = DiskTier(mark, folder, capacity)
        known = {entry.path: ref for entry, ref in tier.entries()}
        assert known == {make_entry(mark, PATHS[i], 1).path: oracle[i][0] for i in oracle}
        assert tier.num_values == len(oracle)
        assert tier.used_bytes <= capacity
    tier.drain(SLOWEST_S)
    on_disk = bytes_in(tier)
    assert on_disk <= capacity
    assert (tier.used_bytes > 0) == bool(oracle)
    tier.close()


def test_dtypes_of_equal_size_do_not_share(tmp_path, rng):
    half, brain = (row_shape(make_pool(dtype)) for dtype in (torch.float16, torch.bfloat16))
    assert half.num_bytes == brain.num_bytes
    facts = [{"model": "m", "rows": repr(rows)} for rows in (half, brain)]
    marks = [Fingerprint(fact, rows) for fact, rows in zip(facts, (half, brain), strict=True)]
    tiers = [DiskTier(mark, tmp_path, MANY) for mark in marks]
    entries = [make_entry(mark, [1, 2], 1) for mark in marks]
    (ref,) = store_all(tiers[0], [(entries[0], make_rows(rng, 1, half.num_bytes))])
    assert not load_one(tiers[1], ref, entries[0]).is_ok
    assert not load_one(tiers[1], ref, entries[1]).is_ok
    for tier in tiers:
        tier.close()
