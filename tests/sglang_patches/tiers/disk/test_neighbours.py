# SPDX-License-Identifier: Apache-2.0
"""Several servers on one folder: each with its own list, and no value is lost or served wrong."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import numpy as np
import pytest

from sglang_patches.tiers.disk import checked
from sglang_patches.tiers.disk.tier import DiskTier
from tests.helpers.ends import SLOWEST_S
from tests.sglang_patches.tiers.disk.make import MANY, MARK, ROWS, load_one, make_entry, store_all

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]

# Copies of this process: importing SGLang anew takes half a minute.
FORK = multiprocessing.get_context("fork")
NUM_VALUES = 40
NUM_DELETED = 10


def make_value(owner, number):
    """Rows that say whose they are."""
    rows = np.full((1, ROWS.num_bytes), (17 * owner + number) % 256, np.uint8)
    return make_entry(MARK, [owner, number], 1), rows


def read_all(tier):
    """{(owner, number)} of what is there; every value must come back, and right."""
    found = set()
    for entry, ref in tier.entries():
        owner, number = (int(token) for token in np.frombuffer(entry.path, "<i4"))
        loaded = load_one(tier, ref, entry)
        assert loaded.is_ok, loaded
        assert np.array_equal(loaded.rows, make_value(owner, number)[1])
        found.add((owner, number))
    return found


def live_of(owner):
    return {(owner, number) for number in range(NUM_DELETED, NUM_VALUES)}


def open_at_once(folder, barrier):
    """All open it at the same time, and none stores before all have."""
    barrier.wait(SLOWEST_S)
    tier = DiskTier(MARK, folder, MANY)
    barrier.wait(SLOWEST_S)
    return tier


def store_and_delete(folder, owner, barrier, ends):
    tier = open_at_once(folder, barrier)
    refs = []
    for number in range(NUM_VALUES):
        refs += store_all(tier, [make_value(owner, number)])
        if number >= NUM_VALUES - NUM_DELETED:
            tier.delete(refs[number - (NUM_VALUES - NUM_DELETED)])
    tier.drain(SLOWEST_S)
    barrier.wait(SLOWEST_S)
    ends.wait(SLOWEST_S)
    assert live_of(owner) <= read_all(tier)
    assert not tier.misses and not tier.dropped
    tier.close()


def store_until_killed(folder, owner, barrier, stored):
    tier = open_at_once(folder, barrier)
    for number in range(100_000):
        store_all(tier, [make_value(owner, number)])
        stored.value = number + 1


def open_and_read(folder, barrier, wanted):
    tier = open_at_once(folder, barrier)
    assert wanted <= read_all(tier)
    barrier.wait(SLOWEST_S)
    tier.close()


def test_survivors_and_those_who_come_after_find_every_value(tmp_path, monkeypatch):
    # What nobody names is deleted at once by whoever opens the folder, not after ten minutes.
    monkeypatch.setattr(checked, "_ORPHAN_S", -1.0)
    for round_number in range(3):
        folder = tmp_path / str(round_number)
        barrier, ends = FORK.Barrier(4), FORK.Event()
        stored = FORK.RawValue("i", 0)  # no lock, which the victim might hold when it is killed
        owners = [
            FORK.Process(target=store_and_delete, args=(folder, owner, barrier, ends))
            for owner in (1, 2, 3)
        ]
        victim = FORK.Process(target=store_until_killed, args=(folder, 4, barrier, stored))
        for process in (*owners, victim):
            process.start()
        while stored.value < NUM_VALUES:
            time.sleep(0.005)
        os.kill(victim.pid, signal.SIGKILL)
        victim.join(SLOWEST_S)
        barrier.wait(SLOWEST_S)  # in the victim's place: the others have stored all of theirs
        wanted = {(4, number) for number in range(stored.value)}.union(*map(live_of, (1, 2, 3)))

        readers_barrier = FORK.Barrier(2)
        readers = [
            FORK.Process(target=open_and_read, args=(folder, readers_barrier, wanted))
            for _ in range(2)
        ]
        for process in readers:
            process.start()
        for process in readers:
            process.join(SLOWEST_S)
            assert process.exitcode == 0
        ends.set()
        for process in owners:
            process.join(SLOWEST_S)
            assert process.exitcode == 0

        last = DiskTier(MARK, folder, MANY)
        assert wanted <= read_all(last) <= wanted | {(4, stored.value)}
        assert len(list(last.folder.glob("manifest-*"))) == 1
        last.close()


def open_often(folder, owner, barrier):
    for turn in range(25):
        tier = open_at_once(folder, barrier)
        store_all(tier, [make_value(owner, turn)])
        barrier.wait(SLOWEST_S)
        tier.close()


def test_servers_that_open_a_folder_at_once_lose_no_list(tmp_path, monkeypatch):
    """3 of 600 were lost, and every value in them."""
    monkeypatch.setattr(checked, "_ORPHAN_S", -1.0)
    barrier = FORK.Barrier(4)
    running = [FORK.Process(target=open_often, args=(tmp_path, i, barrier)) for i in range(4)]
    for process in running:
        process.start()
    for process in running:
        process.join(SLOWEST_S)
        assert process.exitcode == 0
    tier = DiskTier(MARK, tmp_path, MANY)
    assert read_all(tier) == {(owner, turn) for owner in range(4) for turn in range(25)}
    tier.close()


def test_what_a_neighbour_deleted_is_a_miss_and_no_error(tmp_path):
    ours, theirs = DiskTier(MARK, tmp_path, MANY), DiskTier(MARK, tmp_path, MANY)
    values = [make_value(1, number) for number in range(3)]
    refs = store_all(theirs, values)
    later = DiskTier(MARK, tmp_path, MANY, failures_to_off=1)
    theirs.clear()
    theirs.drain(SLOWEST_S)
    for (entry, rows), ref in zip(values, refs, strict=True):
        loaded = load_one(later, ref, entry)
        assert (loaded.reason, loaded.is_gone) == ("missing", True)
        store_all(later, [(entry, rows)])
        assert load_one(later, ref, entry).is_ok
    assert not later.is_off and not later.counters["failures"]
    for tier in (ours, theirs, later):
        tier.close()


def test_each_server_has_the_whole_limit_for_itself(tmp_path):
    size = DiskTier(MARK, tmp_path / "other", MANY).num_bytes(2, 1)
    tiers = [DiskTier(MARK, tmp_path, 3 * size) for _ in range(2)]
    for owner, tier in enumerate(tiers):
        store_all(tier, [make_value(owner, number) for number in range(3)])
        assert tier.store(*make_value(owner, 9)) is None
        assert tier.dropped == {"full": 1}
    assert len(list(tiers[0].folder.glob("values/*"))) == 6
    for tier in tiers:
        tier.close()
