# SPDX-License-Identifier: Apache-2.0
"""A broken disk costs a miss with a reason, never an exception, a wrong row or a blocked caller."""

from __future__ import annotations

import resource
import signal

import pytest

from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.disk.value import payload_offset
from tests.helpers.ends import SLOWEST_S
from tests.sglang_patches.tiers.disk.backends import BEHAVIOUR, Behaviour
from tests.sglang_patches.tiers.disk.make import (
    MANY,
    MARK,
    ROWS,
    Clock,
    load_one,
    make_entry,
    make_node,
    make_print,
    store_all,
)

pytestmark = pytest.mark.sglang


@pytest.fixture
def moody(tmp_path, request):
    """`moody(**settings)` opens a tier over the backend that fails on command."""
    mood = BEHAVIOUR[request.node.name] = Behaviour()
    tiers = []

    def start(**settings):
        config = {
            "module_path": "tests.sglang_patches.tiers.disk.backends",
            "class_name": "Moody",
            "mood": request.node.name,
            "depcache_folder": str(tmp_path / "values"),
        }
        (tmp_path / "values").mkdir(exist_ok=True)
        tier = DiskTier(MARK, tmp_path, MANY, backend="dynamic", backend_config=config, **settings)
        tiers.append(tier)
        return tier, mood

    yield start
    mood.release.set()
    for tier in tiers:
        tier.close(1)


def value_file(tier):
    (file,) = tier.folder.glob("values/*")
    return file


# -- wrong bytes ---------------------------------------------------------------------------------


def test_any_flipped_bit_is_a_miss(tmp_path, rng):
    tier = DiskTier(MARK, tmp_path, MANY)
    entry, rows = make_node(rng, [3, 1, 4, 1, 5])
    (ref,) = store_all(tier, [(entry, rows)])
    good = value_file(tier).read_bytes()
    offset = payload_offset(5)
    assert len(good) == offset + 2 * ROWS.num_bytes
    assert good[offset:] == rows.tobytes()
    reasons = set()
    for position in range(len(good)):  # every byte of header, tokens, padding and payload
        file = value_file(tier)
        bad = bytearray(good)
        bad[position] ^= 1 << int(rng.integers(8))
        file.write_bytes(bad)

        loaded = load_one(tier, ref, entry)

        assert not loaded.is_ok and loaded.rows is None and loaded.is_gone
        reasons.add(loaded.reason)
        assert not file.exists(), "the bad value was kept"
        assert tier.used_bytes == 0
        store_all(tier, [(entry, rows)])
    assert load_one(tier, ref, entry).is_ok
    assert reasons == {"format", "truncated", "header_checksum", "payload_checksum"}
    assert sum(tier.misses.values()) == len(good)
    tier.close()


@pytest.mark.parametrize("keep", [0, 1, 100, 128, 150, -1])
def test_a_truncated_or_longer_file_is_a_miss(tmp_path, rng, keep):
    tier = DiskTier(MARK, tmp_path, MANY)
    entry, rows = make_node(rng, [3, 1, 4])
    (ref,) = store_all(tier, [(entry, rows)])
    file = value_file(tier)
    whole = file.read_bytes()
    file.write_bytes(whole[:keep] if keep >= 0 else whole + b"x")
    loaded = load_one(tier, ref, entry)
    assert (loaded.reason, loaded.is_gone) == ("truncated", True)
    assert not file.exists() and tier.num_values == 0
    tier.close()


def test_a_file_that_is_gone_is_a_miss(tmp_path, rng):
    tier = DiskTier(MARK, tmp_path, MANY)
    entry, rows = make_node(rng, [3, 1, 4])
    (ref,) = store_all(tier, [(entry, rows)])
    value_file(tier).unlink()
    assert load_one(tier, ref, entry).reason == "missing"
    assert tier.used_bytes == 0
    tier.close()


def test_a_file_from_another_model_is_a_miss(tmp_path, rng):
    other_mark = make_print(weights="other")
    ours, theirs = DiskTier(MARK, tmp_path, MANY), DiskTier(other_mark, tmp_path, MANY)
    assert ours.folder != theirs.folder
    entry, rows = make_node(rng, [3, 1, 4])
    (ref,) = store_all(ours, [(entry, rows)])
    store_all(theirs, [(make_entry(other_mark, [3, 1, 4], 2), rows)])
    # Sealed and sound in itself, with the name of ours.
    value_file(ours).write_bytes(value_file(theirs).read_bytes())
    assert load_one(ours, ref, entry).reason == "model"
    ours.close()
    theirs.close()


def test_a_sound_value_of_another_node_under_this_name_is_a_miss(tmp_path, rng):
    tier = DiskTier(MARK, tmp_path, MANY)
    wanted, other = make_node(rng, [3, 1, 4, 1]), make_node(rng, [3, 1, 4, 2])
    salted = make_entry(MARK, [3, 1, 4, 1], 2, namespace=("salt", "tree"))
    for entry, reason in ((other[0], "tokens"), (salted, "namespace")):
        (ref,) = store_all(tier, [wanted])
        file = value_file(tier)
        (other_ref,) = store_all(tier, [(entry, other[1])])
        (other_file,) = [f for f in tier.folder.glob("values/*") if f != file]
        other_file.replace(file)
        # Also where the caller knows only a part of the path: the rest is in the key.
        upper, _ = ref.split(1)
        assert load_one(tier, upper, wanted[0]).reason == reason
        tier.delete(other_ref)
        tier.drain(SLOWEST_S)
    tier.close()


# -- a storage that fails ------------------------------------------------------------------------


def test_a_full_disk_drops_writes_and_keeps_what_is_there(moody, rng):
    tier, mood = moody(failures_to_off=100)
    kept = make_node(rng, [1, 2])
    (ref,) = store_all(tier, [kept])
    used = tier.used_bytes
    mood.fails = {"set"}
    for i in range(5):
        tier.store(*make_node(rng, [5, i]))
    finished = tier.drain(SLOWEST_S)
    assert [(one.is_ok, one.reason) for one in finished] == [(False, "error")] * 5
    assert tier.used_bytes == used
    assert tier.dropped == {"error": 5} and tier.counters["failures"] == 5
    assert load_one(tier, ref, kept[0]).is_ok


def test_a_real_full_disk_leaves_no_half_file(tmp_path, rng):
    """The kernel refuses to write beyond a size, in the middle of a file."""
    tier = DiskTier(MARK, tmp_path, MANY)
    small = make_node(rng, [1, 2])
    (ref,) = store_all(tier, [small])
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        tier.store(*make_node(rng, list(range(200)), 150))
        (big,) = tier.drain(SLOWEST_S)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old_handler)
    assert not big.is_ok
    assert len(list(tier.folder.glob("values/*"))) == 1
    assert load_one(tier, ref, small[0]).is_ok
    tier.close()


def test_a_backend_that_refuses_is_counted(moody, rng):
    tier, mood = moody()
    mood.refuses = True
    tier.store(*make_node(rng, [1, 2]))
    (finished,) = tier.drain(SLOWEST_S)
    assert finished.reason == "refused" and tier.used_bytes == 0


def test_a_read_that_raises_is_a_miss_and_the_value_stays(moody, rng):
    tier, mood = moody()
    node = make_node(rng, [1, 2])
    (ref,) = store_all(tier, [node])
    mood.fails = {"get"}
    loaded = load_one(tier, ref, node[0])
    assert (loaded.reason, loaded.is_gone) == ("error", False)
    mood.fails = set()
    assert load_one(tier, ref, node[0]).is_ok


def test_a_deletion_that_fails_keeps_its_bytes_counted(moody, rng):
    tier, mood = moody()
    (ref,) = store_all(tier, [make_node(rng, [1, 2])])
    used = tier.used_bytes
    mood.fails = {"delete"}
    tier.delete(ref)
    assert tier.used_bytes == 0
    tier.drain(SLOWEST_S)
    assert tier.used_bytes == used == tier.counters["undeleted_bytes"]


def test_a_failing_storage_is_switched_off_and_tried_again(moody, rng, caplog):
    clock = Clock()
    tier, mood = moody(failures_to_off=3, off_s=30.0, clock=clock)
    mood.fails = {"set"}
    for i in range(3):
        assert not tier.is_off
        tier.store(*make_node(rng, [1, i]))
        tier.drain(SLOWEST_S)
    assert tier.is_off
    assert tier.describe()["off_events"] == 1
    num_calls = len(mood.calls)
    assert tier.store(*make_node(rng, [1, 9])) is None
    assert tier.dropped["off"] == 1
    assert len(mood.calls) == num_calls

    clock.now = 31.0
    tier.store(*make_node(rng, [2, 1]))  # one try, and off again
    tier.drain(SLOWEST_S)
    assert tier.is_off
    clock.now = 62.0
    mood.fails = set()
    store_all(tier, [make_node(rng, [2, 2])])
    mood.fails = {"set"}
    for i in range(2):
        tier.store(*make_node(rng, [3, i]))
        tier.drain(SLOWEST_S)
    assert not tier.is_off, "a success did not close the matter"
    warnings = [record for record in caplog.records if "failures in a row" in record.message]
    assert [record.levelname for record in warnings if record.levelno >= 30] == ["WARNING"]


@pytest.mark.parametrize("verb", ["set", "get"])
def test_a_hanging_storage_is_given_up_after_its_deadline(moody, rng, verb):
    clock = Clock()
    tier, mood = moody(clock=clock, deadline_s=5.0, failures_to_off=100, num_load_threads=1)
    node = make_node(rng, [1, 2])
    (ref,) = store_all(tier, [node])
    written = []
    mood.hangs = {verb}

    def begin():
        mood.calls.clear()
        if verb == "set":
            ticket = tier.store(*make_node(rng, [9, 9]))
        else:
            ticket = tier.load(ref, node[0].path, node[0].namespace, into=written.append)
        while verb not in mood.calls:
            tier.drain(0.01)
        return ticket

    ticket = begin()
    assert tier.poll() == []
    clock.now = 5.1
    (finished,) = tier.poll()
    assert (finished.ticket, finished.reason) == (ticket, "timeout")
    assert not finished.is_gone
    assert tier.describe()["stuck_threads"] == 1

    # Another thread has taken over, and the late answer reaches nobody.
    mood.hangs = set()
    assert load_one(tier, ref, node[0]).is_ok
    store_all(tier, [make_node(rng, [4, 4])])
    mood.release.set()
    while tier.describe()["stuck_threads"]:
        tier.drain(0.01)
    assert tier.poll() == [] and written == []
    paths = {entry.path for entry, _ in tier.entries()}
    assert make_entry(MARK, [9, 9], 2).path not in paths
    assert len(list((tier.folder.parent / "values").glob("*"))) == 2


def test_a_storage_that_hangs_for_ever_costs_few_threads(moody, rng):
    clock = Clock()
    tier, mood = moody(clock=clock, deadline_s=5.0, failures_to_off=5, off_s=1e9)
    mood.hangs = {"set"}
    tickets = [tier.store(*make_node(rng, [1, i])) for i in range(30)]
    finished = []
    while len(finished) < 30:
        tier.drain(0.02)
        clock.now += 2.0
        finished += tier.poll()
    assert sorted(one.ticket for one in finished) == tickets
    assert {one.reason for one in finished} == {"timeout"}
    assert tier.describe()["stuck_threads"] <= 4
    assert tier.is_off and tier.used_bytes == 0


def test_a_full_queue_drops_and_counts(moody, rng):
    tier, mood = moody(max_waiting_stores=2, max_waiting_loads=1, num_load_threads=1)
    node = make_node(rng, [1, 2])
    (ref,) = store_all(tier, [node])
    mood.hangs = {"set", "get"}
    stores = [tier.store(*make_node(rng, [5, i])) for i in range(6)]
    loads = [tier.load(ref, node[0].path, node[0].namespace) for _ in range(6)]
    assert stores[:2] != [None, None] and None in stores
    assert loads[0] is not None and None in loads
    assert tier.dropped["queue_full"] == stores.count(None)
    assert tier.misses["queue_full"] == loads.count(None)
    mood.release.set()
    finished = tier.drain(SLOWEST_S)
    assert sorted(one.ticket for one in finished) == sorted(
        ticket for ticket in (*stores, *loads) if ticket is not None
    )


def test_deletions_never_crowd_out_writes(tmp_path, rng):
    tier = DiskTier(MARK, tmp_path, MANY, max_waiting_stores=8)
    refs = [store_all(tier, [make_node(rng, [1, i])])[0] for i in range(40)]
    for ref in refs:
        tier.delete(ref)
    assert all(tier.store(*make_node(rng, [2, i])) is not None for i in range(8))
    tier.drain(SLOWEST_S)
    assert tier.num_values == 8 and len(list(tier.folder.glob("values/*"))) == 8
    tier.close()


def test_a_payload_that_raises_is_no_exception_of_the_tier(tmp_path):
    tier = DiskTier(MARK, tmp_path, MANY)

    def fail(out):
        raise RuntimeError("host slots are gone")

    tier.store(make_entry(MARK, [1, 2], 1), fail)
    (finished,) = tier.drain(SLOWEST_S)
    assert finished.reason == "error" and tier.used_bytes == 0
    tier.close()


@pytest.mark.parametrize("obstacle", ["file", "backend"])
def test_a_folder_that_cannot_be_used_leaves_the_tier_off_but_alive(
    tmp_path, rng, moody, caplog, obstacle
):
    if obstacle == "file":  # stands in for a read-only folder, which root could write to
        (tmp_path / MARK.name).write_text("not a folder")
        tier = DiskTier(MARK, tmp_path, MANY)
    else:
        for behaviour in BEHAVIOUR.values():
            behaviour.fails = {"open"}
        tier, _ = moody()
    assert "runs without it" in caplog.text
    assert list(tier.entries()) == []
    for i in range(10):
        tier.store(*make_node(rng, [1, i]))
        assert not any(one.is_ok for one in tier.drain(SLOWEST_S))
    assert tier.is_off and tier.used_bytes == 0
    tier.clear()
    tier.close()
