# SPDX-License-Identifier: Apache-2.0
"""A new process finds what the last one stored, whatever state it left the folder in."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import numpy as np
import pytest

from sglang_patches.tiers.disk.manifest import Manifest
from sglang_patches.tiers.disk.tier import DiskTier
from tests.helpers.ends import SLOWEST_S
from tests.sglang_patches.tiers.disk.make import (
    MANY,
    MARK,
    ROWS,
    load_one,
    make_entry,
    make_node,
    make_print,
    store_all,
)

pytestmark = pytest.mark.sglang


def make_nodes(rng, num):
    return [make_node(rng, [7, i, 1]) for i in range(num)]


def check_all(tier, nodes):
    """Every node, and nothing else, is known and comes back."""
    known = {entry.path: (entry, ref) for entry, ref in tier.entries()}
    assert known.keys() == {entry.path for entry, _ in nodes}
    for entry, rows in nodes:
        found, ref = known[entry.path]
        assert found == entry
        assert np.array_equal(load_one(tier, ref, entry).rows, rows)


def the_manifest(tier):
    (file,) = tier.folder.glob("manifest-*")
    return file


def test_everything_is_found_again(tmp_path, rng):
    nodes = make_nodes(rng, 30)
    tier = DiskTier(MARK, tmp_path, MANY)
    refs = store_all(tier, nodes)
    for ref in refs[:10]:
        tier.delete(ref)
    tier.drain(SLOWEST_S)
    used = tier.used_bytes
    tier.close()

    for _ in range(3):
        tier = DiskTier(MARK, tmp_path, MANY)
        assert tier.used_bytes == used
        check_all(tier, nodes[10:])
        tier.close()
    assert len(list(tier.folder.glob("manifest-*"))) == 1


def start(work, *arguments):
    """A process of its own. A copy of this one: importing SGLang anew takes half a minute."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    return process


def store_and_die(folder):
    tier = DiskTier(MARK, folder, MANY)
    rows = np.full((1, ROWS.num_bytes), 7, np.uint8)
    store_all(tier, [(make_entry(MARK, [i, i], 1), rows) for i in range(12)])
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_that_was_killed_leaves_all_that_it_had_finished(tmp_path):
    process = start(store_and_die, tmp_path)
    process.join(SLOWEST_S)
    assert process.exitcode == -signal.SIGKILL
    tier = DiskTier(MARK, tmp_path, MANY)
    rows = np.full((1, ROWS.num_bytes), 7, np.uint8)
    check_all(tier, [(make_entry(MARK, [i, i], 1), rows) for i in range(12)])
    tier.close()


def test_a_torn_end_costs_only_the_last_record(tmp_path, rng):
    nodes = make_nodes(rng, 4)
    tier = DiskTier(MARK, tmp_path, MANY)
    sizes = []
    for node in nodes:
        store_all(tier, [node])
        sizes.append(the_manifest(tier).stat().st_size)
    tier.close()
    whole = the_manifest(tier).read_bytes()
    for cut in range(sizes[2], sizes[3]):
        for old in tier.folder.glob("manifest-*"):
            old.unlink()
        (tier.folder / "manifest-old.log").write_bytes(whole[:cut])
        manifest = Manifest(tier.folder)
        assert [known.entry for known in manifest.read_all()] == [e for e, _ in nodes[:3]]
        manifest.close()
    for old in tier.folder.glob("manifest-*"):
        old.unlink()
    (tier.folder / "manifest-old.log").write_bytes(whole[: sizes[3] - 1])
    tier = DiskTier(MARK, tmp_path, MANY)
    check_all(tier, nodes[:3])
    store_all(tier, nodes)  # the file is there, the record is written anew
    tier.close()
    tier = DiskTier(MARK, tmp_path, MANY)
    check_all(tier, nodes)
    tier.close()


def test_no_flipped_bit_of_the_manifest_yields_a_wrong_value(tmp_path, rng):
    nodes = make_nodes(rng, 3)
    tier = DiskTier(MARK, tmp_path, MANY)
    store_all(tier, nodes)
    tier.close()
    whole = the_manifest(tier).read_bytes()
    entries = [entry for entry, _ in nodes]
    for position in range(len(whole)):
        for old in tier.folder.glob("manifest-*"):
            old.unlink()
        bad = bytearray(whole)
        bad[position] ^= 1 << int(rng.integers(8))
        (tier.folder / "manifest-old.log").write_bytes(bad)
        manifest = Manifest(tier.folder)
        found = [known.entry for known in manifest.read_all()]
        assert found == entries[: position * 3 // len(whole)]
        manifest.close()


def test_files_that_are_lost_changed_in_size_or_named_by_nobody_are_sorted_out(tmp_path, rng):
    nodes = make_nodes(rng, 5)
    tier = DiskTier(MARK, tmp_path, MANY)
    refs = store_all(tier, nodes)
    tier.close()
    files = [tier.folder / "values" / f"{ref.key.hex()}_depcache_0_1.bin" for ref in refs]
    files[0].unlink()
    files[1].write_bytes(b"short")
    orphan = files[2].with_name("00ff_depcache_0_1.bin")
    orphan.write_bytes(b"left by a crash")
    stale = files[2].with_name("x.bin.tmp.1.2.3")
    stale.write_bytes(b"half")
    fresh = files[2].with_name("y.bin.tmp.1.2.3")
    fresh.write_bytes(b"a neighbour is writing")
    for file in (orphan, stale):
        os.utime(file, (time.time() - 10**6,) * 2)

    tier = DiskTier(MARK, tmp_path, MANY)

    check_all(tier, nodes[2:])
    assert tier.used_bytes == 3 * tier.num_bytes(3, 2)
    assert not files[1].exists() and not orphan.exists() and not stale.exists()
    assert fresh.exists()
    tier.close()


def test_a_smaller_limit_keeps_the_newest(tmp_path, rng):
    nodes = make_nodes(rng, 6)
    tier = DiskTier(MARK, tmp_path, MANY)
    store_all(tier, nodes)
    size = tier.num_bytes(3, 2)
    tier.close()
    tier = DiskTier(MARK, tmp_path, 2 * size)
    check_all(tier, nodes[4:])
    assert tier.used_bytes == 2 * size
    assert len(list(tier.folder.glob("values/*"))) == 2
    tier.close()


def test_another_model_finds_nothing(tmp_path, rng):
    tier = DiskTier(MARK, tmp_path, MANY)
    store_all(tier, make_nodes(rng, 3))
    tier.close()
    other = DiskTier(make_print(weights="other"), tmp_path, MANY)
    assert list(other.entries()) == [] and other.used_bytes == 0
    other.close()
    tier = DiskTier(MARK, tmp_path, MANY)
    assert len(list(tier.entries())) == 3
    tier.close()


def test_two_servers_on_one_folder_share_and_do_not_harm_each_other(tmp_path, rng):
    nodes = make_nodes(rng, 6)
    first = DiskTier(MARK, tmp_path, MANY)
    refs = store_all(first, nodes[:4])
    second = DiskTier(MARK, tmp_path, MANY)  # while the first one lives
    check_all(second, nodes[:4])
    assert second.used_bytes == 0, "a neighbour's values are not ours to count"
    store_all(second, nodes[4:])

    known = {entry.path: ref for entry, ref in second.entries()}
    second.delete(known[nodes[0][0].path])
    second.drain(SLOWEST_S)
    assert load_one(first, refs[0], nodes[0][0]).is_ok, "a neighbour's value was deleted"
    first.delete(refs[1])
    first.drain(SLOWEST_S)
    assert load_one(second, known[nodes[1][0].path], nodes[1][0]).reason == "missing"
    first.close()
    second.close()

    third = DiskTier(MARK, tmp_path, MANY)
    check_all(third, [nodes[0], *nodes[2:]])
    assert third.used_bytes == 5 * third.num_bytes(3, 2)
    third.close()


def store_load_clear(folder, others):
    tier = DiskTier(MARK, folder, MANY)
    others.wait(SLOWEST_S)
    nodes = [
        (make_entry(MARK, [i, i], 1), np.full((1, ROWS.num_bytes), i, np.uint8)) for i in range(40)
    ]
    for last in (False,) * 5 + (True,):
        refs = store_all(tier, nodes)
        for (entry, rows), ref in zip(nodes, refs, strict=True):
            loaded = load_one(tier, ref, entry)
            assert loaded.reason in ("", "missing", "at once"), loaded
            assert not loaded.is_ok or np.array_equal(loaded.rows, rows)
        if not last:
            tier.clear()
            tier.drain(SLOWEST_S)
    tier.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_two_processes_may_write_the_same_values_at_once(tmp_path):
    others = multiprocessing.get_context("fork").Barrier(2)
    running = [start(store_load_clear, tmp_path, others) for _ in range(2)]
    for process in running:
        process.join(SLOWEST_S)
        assert process.exitcode == 0
    tier = DiskTier(MARK, tmp_path, MANY)
    for entry, ref in tier.entries():
        loaded = load_one(tier, ref, entry)
        first_token = int(np.frombuffer(entry.path, "<i4")[0])
        assert loaded.is_ok and (loaded.rows == first_token).all()
    tier.close()
