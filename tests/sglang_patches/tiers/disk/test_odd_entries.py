# SPDX-License-Identifier: Apache-2.0
"""What does not belong into the folder of a disk tier is skipped and counted; the rest works."""

from __future__ import annotations

import logging
import os
import socket
import stat
import time

import numpy as np
import pytest

from sglang_patches.tiers.disk.tier import DiskTier
from tests.helpers.ends import SLOWEST_S
from tests.sglang_patches.tiers.disk.make import MANY, MARK, load_one, make_node, store_all

# A start that waits for a FIFO waits for ever.
pytestmark = pytest.mark.sglang


def put_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(path.parent)  # the name of a socket has a hundred bytes at most
        server.bind(path.name)
        os.chdir(here)


def put_full_folder(path):
    path.mkdir()
    (path / "file").write_text("so that nobody removes it")


ODD = {
    "folder": put_full_folder,
    "fifo": os.mkfifo,
    "socket": put_socket,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "looping link": lambda path: path.symlink_to(path.name),
    "link": lambda path: path.symlink_to("/etc/passwd"),
}


@pytest.fixture
def stored(tmp_path, rng):
    """A folder in which a server left four values; their nodes and refs."""
    nodes = [make_node(rng, [7, i, 1]) for i in range(4)]
    tier = DiskTier(MARK, tmp_path, MANY)
    refs = store_all(tier, nodes)
    tier.close()
    return tier.folder, nodes, refs


def value_of(folder, ref):
    return folder / "values" / f"{ref.key.hex()}_depcache_0_1.bin"


def check_all(tier, nodes):
    known = {entry.path: (entry, ref) for entry, ref in tier.entries()}
    assert known.keys() == {entry.path for entry, _ in nodes}
    for entry, rows in nodes:
        assert np.array_equal(load_one(tier, known[entry.path][1], entry).rows, rows)


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_manifest_is_skipped(stored, tmp_path, rng, kind, caplog):
    folder, nodes, _ = stored
    odd = folder / "manifest-x.log"
    ODD[kind](odd)
    with caplog.at_level(logging.WARNING, "depcache"):
        tier = DiskTier(MARK, tmp_path, MANY)
        check_all(tier, nodes)
        store_all(tier, [make_node(rng, [8, 8])])
    assert not tier.is_off
    assert tier.describe()["skipped_entries"] == 1
    assert [odd.name in record.getMessage() for record in caplog.records] == [True]
    assert os.path.lexists(odd)
    tier.close()


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_value_is_a_miss_and_the_others_are_found(stored, tmp_path, rng, kind):
    folder, nodes, refs = stored
    value_of(folder, refs[0]).unlink()
    ODD[kind](value_of(folder, refs[0]))
    tier = DiskTier(MARK, tmp_path, MANY)
    check_all(tier, nodes[1:])
    store_all(tier, [make_node(rng, [8, 8])])
    assert not tier.is_off
    # A folder cannot be put out of the way; of the others nothing is left.
    is_there = os.path.lexists(value_of(folder, refs[0]))
    assert is_there == (kind == "folder")
    assert tier.describe()["skipped_entries"] == is_there
    tier.close()


@pytest.mark.parametrize("kind", ODD)
def test_a_value_that_becomes_odd_is_a_miss_at_once(stored, tmp_path, kind):
    folder, nodes, refs = stored
    tier = DiskTier(MARK, tmp_path, MANY, failures_to_off=1)
    value_of(folder, refs[0]).unlink()
    ODD[kind](value_of(folder, refs[0]))
    start = time.monotonic()
    loaded = load_one(tier, refs[0], nodes[0][0])
    assert time.monotonic() - start < 2
    assert (loaded.is_ok, loaded.is_gone) == (False, True)
    assert not tier.is_off
    if kind == "folder":
        tier.store(*nodes[0])
        (finished,) = tier.drain(SLOWEST_S)
        assert not finished.is_ok  # said to be stored, it would be missed again and again
    else:
        store_all(tier, nodes[:1])
        assert load_one(tier, refs[0], nodes[0][0]).is_ok
        assert stat.S_ISREG(value_of(folder, refs[0]).lstat().st_mode)
    tier.close()


def test_entries_that_are_no_values_are_left_alone(stored, tmp_path, rng):
    folder, nodes, _ = stored
    long_ago = time.time() - 10**6
    for number, (kind, put) in enumerate(ODD.items()):
        path = folder / "values" / f"{number:040x}_depcache_0_1.bin"
        put(path)
        put(folder / "values" / f"{kind}.bin.tmp.1.2.3")
        os.utime(path, (long_ago, long_ago), follow_symlinks=False)
    tier = DiskTier(MARK, tmp_path, MANY)
    check_all(tier, nodes)
    assert tier.describe()["skipped_entries"] >= len(ODD)
    tier.close()


def test_a_value_that_cannot_be_deleted_stays_counted(stored, tmp_path, monkeypatch):
    folder, nodes, refs = stored
    stuck = value_of(folder, refs[0])
    real = os.remove

    def remove(path, **more):
        if str(path) == str(stuck):
            raise PermissionError(1, "Operation not permitted", str(path))  # chattr +i
        real(path, **more)

    monkeypatch.setattr(os, "remove", remove)
    stuck.write_bytes(b"of another length")
    tier = DiskTier(MARK, tmp_path, MANY)
    check_all(tier, nodes[1:])
    assert not tier.is_off
    assert tier.describe()["skipped_entries"] == 1
    assert tier.used_bytes == 3 * tier.num_bytes(3, 2) + tier.counters["undeleted_bytes"]
    assert tier.counters["undeleted_bytes"] >= len(b"of another length")
    tier.close()


def test_a_folder_in_place_of_the_description_is_no_matter(stored, tmp_path):
    folder, nodes, _ = stored
    (folder / "fingerprint.json").unlink()
    put_full_folder(folder / "fingerprint.json")
    tier = DiskTier(MARK, tmp_path, MANY)
    check_all(tier, nodes)
    assert tier.describe()["skipped_entries"] == 1
    tier.close()


def test_a_manifest_that_cannot_be_read_makes_no_value_an_orphan(stored, tmp_path, monkeypatch):
    """It may be a living neighbour's, whose values would be taken for a crash's and deleted."""
    folder, _, refs = stored
    long_ago = time.time() - 10**6
    for ref in refs:
        os.utime(value_of(folder, ref), (long_ago, long_ago))
    (manifest,) = folder.glob("manifest-*")
    real = os.open

    def fail(path, flags, *more, **named):
        if str(path) == str(manifest):
            raise OSError(24, "Too many open files", str(path))
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", fail)
    tier = DiskTier(MARK, tmp_path, MANY)
    assert list(tier.entries()) == []
    tier.close()
    assert all(value_of(folder, ref).exists() for ref in refs)
