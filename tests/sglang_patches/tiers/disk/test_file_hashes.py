# SPDX-License-Identifier: Apache-2.0
"""A file is read once; its digest is believed for as long as nobody can have changed the file."""

from __future__ import annotations

import json
import os
import stat
import time

import pytest

from sglang_patches.tiers.disk import file_hashes
from sglang_patches.tiers.disk.file_hashes import FileHashes
from tests.helpers.file_times import wait_until_older

LONG_AGO_S = time.time() - 3600


@pytest.fixture
def num_reads(monkeypatch):
    """Counts the pieces that are read from files."""
    read = []
    real = file_hashes._hash_piece

    def count(piece):
        read.append(piece)
        return real(piece)

    monkeypatch.setattr(file_hashes, "_hash_piece", count)
    return lambda: len(read)


@pytest.fixture
def kept_in(tmp_path):
    return tmp_path / "hashes.json"


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """Two files that were written long ago, as far as their times can say."""
    # A change of a file's inode cannot be dated back, so its time is not asked for here.
    monkeypatch.setattr(file_hashes, "RACY_NS", 0)
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for number, file in enumerate(files):
        file.write_bytes(bytes([number]) * 1000)
        os.utime(file, (LONG_AGO_S, LONG_AGO_S))
    wait_until_older(files)
    return files


def test_every_byte_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(file_hashes, "PIECE_BYTES", 64)
    monkeypatch.setattr(file_hashes, "CHUNK_BYTES", 16)
    file = tmp_path / "model.bin"
    good = bytes(range(200))
    digests = set()
    for position in range(-1, len(good)):
        bad = bytearray(good)
        if position >= 0:
            bad[position] ^= 1
        file.write_bytes(bad)
        digests.add(FileHashes().digests([file])[0])
    file.write_bytes(good[:-1])
    digests.add(FileHashes().digests([file])[0])
    file.write_bytes(b"")
    digests.add(FileHashes().digests([file])[0])
    assert len(digests) == len(good) + 3


def test_a_file_that_did_not_change_is_read_once(weights, kept_in, num_reads):
    first = FileHashes(kept_in).digests(weights)
    assert num_reads() == 2
    assert FileHashes(kept_in).digests(weights) == first
    assert num_reads() == 2
    weights[0].write_bytes(b"other")
    assert FileHashes(kept_in).digests(weights)[0] != first[0]
    assert num_reads() == 3


def test_other_bytes_of_the_same_length_and_time_are_noticed(weights, kept_in):
    before = FileHashes(kept_in).digests(weights)
    weights[0].write_bytes(b"x" * 1000)
    os.utime(weights[0], (LONG_AGO_S, LONG_AGO_S))  # as rsync --times leaves it
    assert FileHashes(kept_in).digests(weights)[0] != before[0]


def test_another_file_in_its_place_is_noticed(weights, kept_in, num_reads):
    before = FileHashes(kept_in).digests(weights)
    other = weights[0].with_name("other")
    other.write_bytes(b"y" * 1000)
    os.utime(other, (LONG_AGO_S, LONG_AGO_S))
    other.replace(weights[0])
    assert FileHashes(kept_in).digests(weights)[0] != before[0]


def test_a_file_that_was_written_just_now_is_read_again(tmp_path, kept_in, num_reads):
    """A second write within the same tick of the file system's clock would leave no trace."""
    file = tmp_path / "model.bin"
    file.write_bytes(b"now")
    FileHashes(kept_in).digests([file])
    FileHashes(kept_in).digests([file])
    assert num_reads() == 2


def test_a_link_stands_for_the_file_behind_it(tmp_path, weights, kept_in, num_reads):
    """HuggingFace's cache: a snapshot's names are links into a folder of blobs."""
    link = tmp_path / "snapshot" / "model.safetensors"
    link.parent.mkdir()
    link.symlink_to(weights[0])
    first = FileHashes(kept_in).digests([link])
    assert first == FileHashes(kept_in).digests([weights[0]])
    assert num_reads() == 1
    link.unlink()
    link.symlink_to(weights[1])
    assert FileHashes(kept_in).digests([link]) != first


@pytest.mark.parametrize("num_changes", [1, 2, 3, 100])
def test_a_file_that_changes_while_it_is_read_is_read_again_and_then_refused(
    weights, kept_in, monkeypatch, num_changes
):
    real, changes = file_hashes._hash_piece, []

    def change(piece):
        digest = real(piece)
        if len(changes) < num_changes:
            changes.append(piece)
            weights[0].write_bytes(b"%04d" % len(changes) * 250)
        return digest

    with monkeypatch.context() as patch:
        patch.setattr(file_hashes, "_hash_piece", change)
        if num_changes < file_hashes.NUM_TRIES:
            found = FileHashes(kept_in).digests(weights[:1])
        else:
            with pytest.raises(OSError, match=r"a\.safetensors keeps changing"):
                FileHashes(kept_in).digests(weights[:1])
            return
    assert found == FileHashes().digests(weights[:1])


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b'{"files": 3}',
        b"\xff\xfe",
        b'{"version": 0, "files": {}}',
        "status",
        "digest",
    ],
)
def test_a_damaged_record_is_made_anew(weights, kept_in, num_reads, damage):
    good = FileHashes(kept_in).digests(weights)
    if isinstance(damage, str):  # the right shape with nonsense in it
        kept = json.loads(kept_in.read_text())
        for entry in kept["files"].values():
            entry[damage] = entry[damage][:2]
        damage = json.dumps(kept).encode()
    kept_in.write_bytes(damage)
    assert FileHashes(kept_in).digests(weights) == good
    assert num_reads() == 4
    assert FileHashes(kept_in).digests(weights) == good
    assert num_reads() == 4


def test_the_record_is_for_its_owner_only(weights, kept_in):
    FileHashes(kept_in).digests(weights)
    assert stat.S_IMODE(kept_in.stat().st_mode) == 0o600
    assert [path.name for path in kept_in.parent.glob("*hashes*")] == [kept_in.name]


def test_a_record_that_cannot_be_written_costs_time_only(weights, tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    first = FileHashes(in_the_way / "hashes.json").digests(weights)
    assert first == FileHashes().digests(weights)
