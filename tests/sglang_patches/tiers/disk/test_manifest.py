# SPDX-License-Identifier: Apache-2.0
"""The list of values stays short, and no list of a living process is taken for a dead one's."""

from __future__ import annotations

import fcntl
import os
import stat
from dataclasses import replace

import pytest

from sglang_patches.tiers.disk.manifest import Known, Manifest, record_bytes
from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.disk.value import KEY_BYTES
from tests.helpers.ends import SLOWEST_S
from tests.sglang_patches.tiers.disk.make import (
    MANY,
    MARK,
    ROWS,
    make_entry,
    make_node,
    make_rows,
    store_all,
)

pytestmark = pytest.mark.sglang


def make_known(number, num_path=10):
    key = number.to_bytes(KEY_BYTES, "little")
    return Known(key, make_entry(MARK, [number] * num_path, 1), 100)


def size_of(folder):
    return sum(file.stat().st_size for file in folder.glob("manifest-*"))


def numbers_in(manifest):
    return [int.from_bytes(known.key, "little") for known in manifest.read_all()]


# -- its size ------------------------------------------------------------------------------------


def test_it_is_never_much_longer_than_what_is_in_it(tmp_path, rng):
    manifest = Manifest(tmp_path, slack_bytes=4096)
    alive = {}
    for step in range(5000):
        number = int(rng.integers(200))
        if number in alive:
            manifest.remove(alive.pop(number).key)
        else:
            known = make_known(number, num_path=int(rng.integers(1, 60)))
            manifest.add(known)
            alive[number] = known
        live_bytes = sum(record_bytes(known.entry.num_path) for known in alive.values())
        size = size_of(tmp_path)
        assert size <= live_bytes + max(4096, live_bytes) + 500
        assert manifest.dead_bytes == size - live_bytes
        if step % 500 == 0:
            assert {known.key: known for known in manifest.read_all()} == {
                known.key: known for known in alive.values()
            }
    manifest.close()
    following = Manifest(tmp_path)
    assert sorted(numbers_in(following)) == sorted(alive)
    assert following.dead_bytes == 0
    following.close()


def test_what_is_added_again_and_again_is_in_it_once(tmp_path):
    manifest = Manifest(tmp_path, slack_bytes=1000)
    for _ in range(1000):
        manifest.add(make_known(1))
    assert numbers_in(manifest) == [1]
    assert size_of(tmp_path) < 3000
    manifest.close()


def test_order_survives_being_rewritten(tmp_path):
    manifest = Manifest(tmp_path, slack_bytes=10)
    for number in (5, 3, 9, 1, 3):
        manifest.add(make_known(number))
    manifest.remove(make_known(9).key)
    manifest.compact()
    manifest.add(make_known(2))
    assert numbers_in(manifest) == [5, 1, 3, 2]
    manifest.close()


def test_a_disk_that_is_full_when_it_is_rewritten_loses_nothing(tmp_path, monkeypatch):
    manifest = Manifest(tmp_path, slack_bytes=1000)
    for number in range(20):
        manifest.add(make_known(number))

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        for number in range(15):
            manifest.remove(make_known(number).key)
            manifest.add(make_known(100 + number))
            manifest.remove(make_known(100 + number).key)
    assert numbers_in(manifest) == [15, 16, 17, 18, 19]
    assert [path.name for path in tmp_path.glob(".*")] == []
    for number in range(200, 300):
        manifest.add(make_known(number))
        manifest.remove(make_known(number).key)
    assert size_of(tmp_path) < 6000
    assert numbers_in(manifest) == [15, 16, 17, 18, 19]
    manifest.close()


def test_values_and_list_together_stay_within_the_limit(tmp_path, rng):
    capacity = 200_000
    tier = DiskTier(MARK, tmp_path, capacity)
    refs, most, least_free = [], 0, capacity
    for i in range(1500):
        # Long paths of few own tokens: the list is a good part of what is stored.
        entry = make_entry(MARK, [i, *range(int(rng.integers(200)))], 1)
        rows = make_rows(rng, 1, ROWS.num_bytes)
        while tier.free_bytes < tier.num_bytes(entry.num_path, 1):
            tier.delete(refs.pop(int(rng.integers(len(refs)))))
            tier.drain(SLOWEST_S)
        refs += store_all(tier, [(entry, rows)])
        if i % 10 == 0:
            files = [*tier.folder.glob("values/*"), *tier.folder.glob("manifest-*")]
            most = max(most, sum(file.stat().st_size for file in files))
            least_free = min(least_free, tier.free_bytes)
    assert most <= capacity
    assert most > capacity / 3, "hardly anything was stored"
    assert tier.num_values == len(refs)
    tier.close()
    again = DiskTier(MARK, tmp_path, capacity)
    assert again.num_values == len(refs)
    again.close()


def test_a_small_tier_can_always_store_again(tmp_path, rng):
    size = DiskTier(MARK, tmp_path / "other", MANY).num_bytes(3, 2)
    tier = DiskTier(MARK, tmp_path, 3 * size)
    for i in range(500):
        (ref,) = store_all(tier, [make_node(rng, [7, i, 1])])
        tier.delete(ref)
        tier.drain(SLOWEST_S)
    assert size_of(tier.folder) < size
    tier.close()


# -- who else may read it --------------------------------------------------------------------------


def modes_in(folder):
    return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.rglob("*"))}


@pytest.fixture
def _careless():
    """A umask that lets everybody do everything."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_careless")
def test_tokens_and_values_are_for_their_owner_only(tmp_path, rng):
    tier = DiskTier(MARK, tmp_path / "cache", MANY)
    refs = store_all(tier, [make_node(rng, [7, i, 1]) for i in range(3)])
    tier.delete(refs[0])
    tier.drain(SLOWEST_S)
    tier.close()
    modes = modes_in(tmp_path / "cache")
    assert len(modes) >= 8
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
    for path in tier.folder.rglob("*"):  # as an earlier version left them
        if path.name != "lock":
            path.chmod(0o755 if path.is_dir() else 0o644)
    tier.folder.chmod(0o755)
    DiskTier(MARK, tmp_path / "cache", MANY).close()
    modes = modes_in(tmp_path / "cache")
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


@pytest.mark.usefixtures("_careless")
def test_a_folder_that_was_there_before_is_left_as_it_is(tmp_path):
    """It may be /tmp."""
    shared = tmp_path / "shared"
    shared.mkdir(0o777)
    tier = DiskTier(MARK, shared, MANY)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o777
    assert stat.S_IMODE(tier.folder.stat().st_mode) == 0o700
    tier.close()


# -- the lists of others ---------------------------------------------------------------------------


@pytest.fixture
def before_lock(monkeypatch):
    """`before_lock(act)` runs `act` once, just before the next lock is asked for."""
    real, waiting = fcntl.flock, []

    def flock(descriptor, operation):
        if waiting:
            waiting.pop()()
        return real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    return waiting.append


def test_a_list_that_is_being_made_is_nobodys_prey(tmp_path, before_lock):
    """3 of 600 were lost when four processes opened a folder at once."""
    others = []
    before_lock(lambda: others.append(Manifest(tmp_path)))
    first = Manifest(tmp_path)
    (second,) = others
    first.add(make_known(1))
    second.add(make_known(2))
    assert sorted(numbers_in(first)) == sorted(numbers_in(second)) == [1, 2]
    first.close()
    second.close()
    third = Manifest(tmp_path)
    assert sorted(numbers_in(third)) == [1, 2]
    third.close()


def test_a_list_that_is_rewritten_while_another_process_looks_stays_its_owners(
    tmp_path, before_lock
):
    first = Manifest(tmp_path)
    for number in range(5):
        first.add(make_known(number))
    first.remove(make_known(0).key)
    before_lock(first.compact)
    second = Manifest(tmp_path)
    assert sorted(numbers_in(second)) == [1, 2, 3, 4]
    assert not any(known.is_ours for known in second.read_all())
    first.add(make_known(9))
    assert sorted(numbers_in(second)) == [1, 2, 3, 4, 9]
    first.close()
    second.close()


def test_a_half_made_list_of_a_crash_is_swept(tmp_path):
    left, fresh = tmp_path / ".manifest-a.log.new", tmp_path / ".manifest-b.log.new"
    for path in (left, fresh):
        path.write_bytes(b"half")
    os.utime(left, (1, 1))
    Manifest(tmp_path).close()
    assert (left.exists(), fresh.exists()) == (False, True)


def test_without_locks_there_is_no_list(tmp_path, monkeypatch, rng):
    """Who lives could not be told from who is dead."""

    def fail(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    tier = DiskTier(MARK, tmp_path, MANY)
    tier.store(*make_node(rng, [1, 2]))
    assert not any(one.is_ok for one in tier.drain(SLOWEST_S))
    assert list(tier.entries()) == []
    tier.close()


# -- whose a value is ----------------------------------------------------------------------------


def test_owners_outlive_a_process_and_a_compaction(tmp_path):
    known = replace(make_known(1), entry=replace(make_known(1).entry, owner=b"w" * 16))
    manifest = Manifest(tmp_path)
    for each in (known, make_known(2)):
        manifest.add(each)
    manifest.compact()
    assert [each.entry.owner for each in manifest.read_all()] == [b"w" * 16, b""]
    manifest.close()
    after = Manifest(tmp_path)
    assert list(after.read_all()) == [known, make_known(2)]
    after.close()


def test_a_list_of_the_first_release_is_read(tmp_path):
    """Its records are those of today without the owner before each."""
    manifest = Manifest(tmp_path)
    manifest.add(make_known(1))
    manifest.add(make_known(2))
    manifest.remove(make_known(1).key)
    manifest.close()
    [path] = tmp_path.glob("manifest-*")
    kept, left = b"", path.read_bytes()
    while left:
        size = 8 + int.from_bytes(left[:4], "little")
        record, left = left[:size], left[size:]
        kept += b"" if record[8] == 3 else record
    assert len(kept) < path.stat().st_size
    path.write_bytes(kept)
    after = Manifest(tmp_path)
    assert list(after.read_all()) == [make_known(2)]
    after.close()
