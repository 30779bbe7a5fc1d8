# SPDX-License-Identifier: Apache-2.0
"""Digests of whole files, read once and believed for as long as the files stay as they were."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import xxhash  # comes with SGLang

from sglang_patches.tiers.disk.folder import open_plain, write_private

logger = logging.getLogger("depcache")

FORMAT_VERSION = 1
DIGEST_BYTES = 16
# Files are read in pieces by several threads, so that one file of many GB takes no longer than
# many small ones. Measured from the page cache on two cores: 13 GB/s, blake2b 1.6 GB/s.
PIECE_BYTES = 256 << 20
CHUNK_BYTES = 1 << 20
NUM_THREADS = 8
# A file system may count time in steps of this (FAT does): of a file that is no older, a later
# write could leave the same time behind, as git has it with its index.
RACY_NS = 2_000_000_000
NUM_TRIES = 3
_LARGE_BYTES = 1 << 30


class _Status(NamedTuple):
    """What changes when a file does, or when another one takes its place.

    A modification time can be set back (`rsync --times`, `cp -p`), the time of the inode's last
    change cannot. Without the device: its number is another one after some restarts of a machine
    or a container, and the rest would have to be equal to the nanosecond.
    """

    num_bytes: int
    modified_ns: int
    changed_ns: int
    inode: int

    @classmethod
    def of(cls, path: str) -> _Status:
        status = os.stat(path)
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def is_older_than(self, time_ns: int) -> bool:
        return max(self.modified_ns, self.changed_ns) < time_ns - RACY_NS


class FileHashes:
    """Digests by a file's real path and status, never by less.

    xxh3 is fast because it resists no adversary, and there is none: whoever can write weights
    can give the server any. 128 bits tell apart what accidents and trainings make of a file.

    Not noticed: other bytes of the same length under a file's path and inode, written by someone
    who set the machine's clock back to the nanosecond of the last change.
    """

    def __init__(self, kept_in: Path | None = None) -> None:
        """kept_in: a file that remembers them; None, or one that cannot be used, remembers none."""
        self._kept_in = kept_in
        self._kept = {} if kept_in is None else _load(kept_in)

    def digests(self, paths: Iterable[Path]) -> list[bytes]:
        """(16,) bytes each. Raises OSError for what cannot be read or keeps changing."""
        names = [str(path.resolve(strict=True)) for path in paths]
        found = {name: self._known(name) for name in names}
        missing = [name for name, digest in found.items() if digest is None]
        for _ in range(NUM_TRIES):
            read = self._read(missing) if missing else {}
            found |= read
            missing = [name for name in missing if name not in read]
        if missing:
            raise OSError(f"{missing[0]} keeps changing while it is read: wait until it is written")
        return [digest for name in names if (digest := found[name]) is not None]

    def _known(self, name: str) -> bytes | None:
        status, digest = self._kept.get(name, (None, None))
        return digest if status == _Status.of(name) else None

    def _read(self, names: list[str]) -> dict[str, bytes]:
        """The digests of those that did not change meanwhile."""
        start_ns, start_s = time.time_ns(), time.perf_counter()
        before = {name: _Status.of(name) for name in names}
        num_bytes = sum(status.num_bytes for status in before.values())
        log = logger.info if num_bytes >= _LARGE_BYTES else logger.debug
        log("disk tier: reading %.1f GB of weights, to know whose KV is on disk", num_bytes / 1e9)
        pieces = [
            (name, start, min(start + PIECE_BYTES, status.num_bytes))
            for name, status in before.items()
            for start in range(0, status.num_bytes, PIECE_BYTES)
        ]
        states = {name: xxhash.xxh3_128(b"") for name in names}
        with ThreadPoolExecutor(NUM_THREADS, "depcache-hash") as threads:
            for (name, _, _), digest in zip(pieces, threads.map(_hash_piece, pieces), strict=True):
                states[name].update(digest)
        log("disk tier: that took %.1f s", time.perf_counter() - start_s)
        stable = {name: status for name, status in before.items() if status == _Status.of(name)}
        for name, status in stable.items():
            states[name].update(status.num_bytes.to_bytes(8, "little"))
        read = {name: states[name].digest() for name in stable}
        fresh = {
            name: (status, read[name])
            for name, status in stable.items()
            if status.is_older_than(start_ns)
        }
        if fresh and self._kept_in is not None:
            self._kept |= fresh
            _save(self._kept_in, self._kept)
        return read


def _hash_piece(piece: tuple[str, int, int]) -> bytes:
    """The digest of bytes `[start, stop)` of a file, fewer where it has become shorter."""
    name, start, stop = piece
    state, buffer = xxhash.xxh3_128(), memoryview(bytearray(min(CHUNK_BYTES, stop - start)))
    descriptor = open_plain(name)
    try:
        while num := os.preadv(descriptor, [buffer[: stop - start]], start):
            state.update(buffer[:num])
            start += num
            if start == stop:
                break
    finally:
        os.close(descriptor)
    return state.digest()


def _load(path: Path) -> dict[str, tuple[_Status, bytes]]:
    try:
        with open(open_plain(path), "rb") as file:
            kept = json.loads(file.read())
        if kept["version"] != FORMAT_VERSION:
            return {}
        files = {
            name: (_Status(*map(int, entry["status"])), bytes.fromhex(entry["digest"]))
            for name, entry in kept["files"].items()
        }
        return {name: one for name, one in files.items() if len(one[1]) == DIGEST_BYTES}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}  # reading the files again costs time only


def _save(path: Path, kept: dict[str, tuple[_Status, bytes]]) -> None:
    files = {
        name: {"status": status, "digest": digest.hex()}
        for name, (status, digest) in kept.items()
        if os.path.exists(name)
    }
    text = json.dumps({"version": FORMAT_VERSION, "files": files}, indent=1) + "\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, text.encode())
    except OSError as error:
        logger.warning("disk tier: %s cannot be written (%s): weights are read again", path, error)
