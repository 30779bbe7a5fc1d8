# SPDX-License-Identifier: Apache-2.0
"""Several servers on one folder: each with its own list, and no value is lost or served wrong."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_patches.tiers.disk import checked
from sglang_patches.tiers.disk.neighbours import LOOK_EVERY_S, limit_of
from sglang_patches.tiers.disk.tier import DiskTier
from tests.helpers.ends import SLOWEST_S
from tests.sglang_patches.tiers.disk.make import (
    MANY,
    MARK,
    ROWS,
    Clock,
    load_one,
    look,
    make_entry,
    store_all,
)

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


class Pair:
    """Two servers on one folder, in one process; time passes when `hear` says so."""

    def __init__(self, folder, capacity_bytes=MANY):
        self.clock = Clock()
        self.one, self.other = (
            DiskTier(MARK, folder, capacity_bytes, clock=self.clock) for _ in range(2)
        )

    def hear(self, tier):
        """What one complete look of `tier` finds."""
        for each in (self.one, self.other):
            each.drain(SLOWEST_S)
        self.clock.now += LOOK_EVERY_S
        before, after = look(tier, tier.hear)
        return before.fresh + after.fresh

    def close(self):
        self.one.close()
        self.other.close()


@pytest.fixture
def pair(tmp_path):
    pair = Pair(tmp_path)
    yield pair
    pair.close()


def test_what_a_neighbour_stores_and_deletes_is_heard(pair):
    assert pair.hear(pair.other) == []
    values = [make_value(1, number) for number in range(3)]
    refs = store_all(pair.one, values)
    heard = pair.hear(pair.other)
    assert heard == [(entry, ref) for (entry, _), ref in zip(values, refs, strict=True)]
    for (entry, rows), (_, ref) in zip(values, heard, strict=True):
        assert np.array_equal(load_one(pair.other, ref, entry).rows, rows)
    assert pair.hear(pair.other) == [], "once is enough"
    assert pair.other.used_bytes == 0 and pair.other.describe()["neighbours"] == 1
    assert pair.other.describe()["neighbour_bytes"] == pair.one.used_bytes

    assert store_all(pair.other, values[:1]) == refs[:1]  # it is there: not written again
    assert pair.other.used_bytes == 0
    pair.one.delete(refs[1])
    assert pair.hear(pair.other) == []
    assert [pair.other.has(ref) for ref in refs] == [True, False, True]
    assert store_all(pair.other, values[1:2]) == refs[1:2]  # now it is its own
    assert pair.other.used_bytes == pair.other.num_bytes(2, 1)
    assert [entry for entry, _ in pair.hear(pair.one)] == [values[1][0]]


def test_a_list_that_was_written_anew_is_read_from_its_beginning(pair):
    values = [make_value(1, number) for number in range(30)]
    refs = store_all(pair.one, values)
    assert len(pair.hear(pair.other)) == 30
    for ref in refs[:20]:
        pair.one.delete(ref)
    pair.one.drain(SLOWEST_S)
    pair.one._checked.manifest.compact()
    store_all(pair.one, [make_value(2, 0)])
    assert [entry for entry, _ in pair.hear(pair.other)] == [make_value(2, 0)[0]]
    assert [pair.other.has(ref) for ref in refs] == 20 * [False] + 10 * [True]
    assert pair.other.describe()["neighbour_bytes"] == pair.one.used_bytes


def test_what_is_dead_in_the_list_of_a_neighbour_takes_of_the_limit(pair):
    refs = store_all(pair.one, [make_value(1, number) for number in range(30)])
    for ref in refs[:10]:
        pair.one.delete(ref)
    pair.hear(pair.other)
    for ref in refs[10:20]:  # of records that were read in an earlier look
        pair.one.delete(ref)
    pair.hear(pair.other)
    dead_bytes = pair.one._checked.manifest.dead_bytes
    assert dead_bytes > 0
    assert pair.other.describe()["neighbour_bytes"] == pair.one.used_bytes + dead_bytes
    store_all(pair.one, [make_value(1, number) for number in range(5)])
    pair.one._checked.manifest.compact()
    pair.hear(pair.other)
    assert pair.other.describe()["neighbour_bytes"] == pair.one.used_bytes


def test_half_a_record_is_read_when_it_is_whole(pair):
    store_all(pair.one, [make_value(1, 0)])
    assert len(pair.hear(pair.other)) == 1
    (entry, _), manifest = make_value(1, 1), pair.one._checked.manifest
    before = manifest._path.read_bytes()
    store_all(pair.one, [make_value(1, 1)])
    whole = manifest._path.read_bytes()
    manifest._path.write_bytes(whole[: len(before) + 20])
    assert pair.hear(pair.other) == []
    manifest._path.write_bytes(whole)
    assert [heard for heard, _ in pair.hear(pair.other)] == [entry]


def store_and_hang(folder, owner, stored):
    tier = DiskTier(MARK, folder, MANY)
    store_all(tier, [make_value(owner, number) for number in range(NUM_VALUES)])
    stored.set()
    time.sleep(SLOWEST_S)


def test_the_values_of_one_that_was_killed_are_taken_over(pair, tmp_path):
    stored = FORK.Event()
    victim = FORK.Process(target=store_and_hang, args=(tmp_path, 4, stored))
    victim.start()
    assert stored.wait(SLOWEST_S)
    assert len(pair.hear(pair.one)) == NUM_VALUES
    assert pair.one.used_bytes == 0
    os.kill(victim.pid, signal.SIGKILL)
    victim.join(SLOWEST_S)

    assert pair.hear(pair.one) == [], "all of it is known"
    size = pair.one.num_bytes(2, 1)
    assert pair.one.used_bytes == NUM_VALUES * size
    assert len(pair.hear(pair.other)) == NUM_VALUES  # in the list of the first, which is alive
    assert pair.other.used_bytes == 0
    assert pair.other.describe()["neighbours"] == 1
    assert len(list(pair.one.folder.glob("manifest-*"))) == 2
    pair.one.clear()
    pair.one.drain(SLOWEST_S)
    assert not list(pair.one.folder.glob("values/*"))


def test_servers_keep_the_limit_together_and_each_gets_its_share(tmp_path):
    size = DiskTier(MARK, tmp_path / "other", MANY).num_bytes(2, 1)
    pair = Pair(tmp_path, 64 * size)
    held = {pair.one: [], pair.other: []}

    def fill(tier, owner, first):
        for number in range(first, first + 64):
            ticket = tier.store(*make_value(owner, number))
            if ticket is None:
                break
            held[tier] += [done.ref for done in tier.drain(SLOWEST_S)]

    def give_up(tier):
        while tier.free_bytes < 0:
            tier.delete(held[tier].pop(0))
        tier.drain(SLOWEST_S)

    def num_on_disk():
        return len(list(pair.one.folder.glob("values/*")))

    for tier in held:
        pair.hear(tier)
    fill(pair.one, 1, 0)
    assert num_on_disk() == 62  # a little is free for the other
    for turn in range(40):
        pair.hear(pair.other)
        fill(pair.other, 2, 3 * turn)
        pair.hear(pair.one)
        give_up(pair.one)
        assert num_on_disk() <= 64
    assert pair.other.used_bytes == 32 * size
    assert 30 * size <= pair.one.used_bytes <= 32 * size  # its list says what it gave up
    used = pair.one.used_bytes
    pair.other.close()
    pair.hear(pair.one)
    assert pair.one.used_bytes == used + 32 * size  # it has inherited the rest
    pair.one.close()


@given(data=st.data(), num=st.integers(2, 5), capacity=st.integers(64, 10_000), many=st.booleans())
def test_however_servers_come_and_go_all_have_their_share_and_no_more_than_all(
    data, num, capacity, many
):
    """Each in turn gives up what is too much, then takes what it may have or less."""
    used = [data.draw(st.integers(0, capacity // num)) for _ in range(num)]
    used[0] = capacity - sum(used[1:])  # one has all the rest
    wanted = [capacity if many else data.draw(st.integers(0, capacity)) for _ in used]
    for _ in range(100):
        for each in range(num):
            limit = limit_of(capacity, num - 1, sum(used) - used[each])
            used[each] = min(limit, max(used[each], wanted[each]))
            assert sum(used) <= capacity
    for has, wants in zip(used, wanted, strict=True):
        assert has >= min(wants, capacity // num)
