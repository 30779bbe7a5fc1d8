# SPDX-License-Identifier: Apache-2.0
"""One stored value: the KV of one node, and everything needed to tell that it is the right one.

    header   fixed size: see `_HEADER`; its last field is a checksum over all before it and
             over the tokens
    tokens   int32, little-endian: the whole path, from the first system token to the node's last
    padding  zeros up to a multiple of 64 bytes
    payload  uint8 (num_own, bytes per token), token by token: keys of all layers, then values.
             A range of the node's tokens is a range of these rows, cut out after the whole
             payload was checked.

A value names itself: the key under which it is stored is a digest of what its header says.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace

import numpy as np
import xxhash  # comes with SGLang; five times as fast as zlib.crc32, and 128 bits

from sglang_patches.tiers.rows import RowShape

FORMAT_VERSION = 1
MAGIC = b"DEPCACHE"
DIGEST_BYTES = 16
KEY_BYTES = 20
TOKEN_BYTES = 4
_ALIGNMENT = 64

# magic, version, bytes per element | fingerprint, namespace | home, tokens of the path, own
# tokens | layers, heads, channels | dtype | bytes of the payload, its checksum | checksum
_HEADER = struct.Struct("<8sII 16s16s qII III 12s Q16s 16s")
_CHECKSUM_BYTES = 16


@dataclass(frozen=True)
class Entry:
    """What a value is about.

    namespace  digest of tenant salt, LoRA and position layout
    path       raw int32 token ids of the whole path; the node's own tokens are its end
    num_own    tokens whose KV is stored, >= 1
    home       position that the first own token's key was rotated for
    owner      digest of the tenant; b"" where a list of the first release does not say it. The
               value itself does not: whose it is follows from `namespace`
    """

    namespace: bytes
    path: bytes
    num_own: int
    home: int
    owner: bytes = b""

    @property
    def num_path(self) -> int:
        """Tokens of the whole path."""
        return len(self.path) // TOKEN_BYTES

    @property
    def num_above(self) -> int:
        """Tokens of the path before the node's own."""
        return self.num_path - self.num_own


@dataclass(frozen=True, slots=True)
class DiskRef:
    """Own tokens `[start, stop)` of a stored value. Hashable; a node keeps one.

    key        names the value
    namespace  as in its Entry, and so are num_path, num_own and home
    start      own tokens before the first one meant; `stop` behind the last one
    """

    key: bytes
    namespace: bytes
    num_path: int
    num_own: int
    home: int
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        """Tokens meant."""
        return self.stop - self.start

    @property
    def path_len(self) -> int:
        """Tokens of the path up to `stop`."""
        return self.num_path - self.num_own + self.stop

    def split(self, at: int) -> tuple[DiskRef, DiskRef]:
        """Two refs for the two halves of a node that is split before its token `at`."""
        middle = self.start + at
        if not self.start < middle < self.stop:
            raise ValueError(f"cannot split {self.num_tokens} tokens at {at}: use 1 to one less")
        return replace(self, stop=middle), replace(self, start=middle)

    def describes(self, entry: Entry) -> bool:
        """Whether everything but the tokens themselves agrees."""
        return (self.namespace, self.num_path, self.num_own, self.home) == (
            entry.namespace,
            entry.num_path,
            entry.num_own,
            entry.home,
        )


def make_ref(key: bytes, entry: Entry) -> DiskRef:
    """The ref of all own tokens."""
    return DiskRef(
        key, entry.namespace, entry.num_path, entry.num_own, entry.home, 0, entry.num_own
    )


def make_key(fingerprint: bytes, entry: Entry) -> bytes:
    """The name of a value: a digest of all that decides what is in it."""
    state = hashlib.blake2b(fingerprint, digest_size=KEY_BYTES)
    state.update(entry.namespace)
    state.update(struct.pack("<qII", entry.home, entry.num_own, len(entry.path)))
    state.update(entry.path)
    return state.digest()


def payload_offset(num_path: int) -> int:
    """Where the payload of a value with so many path tokens begins."""
    size = _HEADER.size + num_path * TOKEN_BYTES
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def value_bytes(num_path: int, num_own: int, rows: RowShape) -> int:
    """Bytes of the whole value."""
    return payload_offset(num_path) + num_own * rows.num_bytes


def payload_view(value: np.ndarray, num_path: int, rows: RowShape) -> np.ndarray:
    """The rows inside a value's bytes, uint8 (num_own, bytes per token); no copy."""
    return value[payload_offset(num_path) :].reshape(-1, rows.num_bytes)


def seal(value: np.ndarray, fingerprint: bytes, entry: Entry, rows: RowShape) -> None:
    """Write header and tokens in front of a payload that is already in place."""
    offset = payload_offset(entry.num_path)
    payload = value[offset:]
    head = _HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        rows.element_bytes,
        fingerprint,
        entry.namespace,
        entry.home,
        entry.num_path,
        entry.num_own,
        rows.num_layers,
        rows.num_heads,
        rows.head_dim,
        rows.dtype.encode(),
        len(payload),
        xxhash.xxh3_128_digest(payload),
        bytes(_CHECKSUM_BYTES),
    )[:-_CHECKSUM_BYTES]
    checksum = xxhash.xxh3_128_digest(head + entry.path)
    padding = bytes(offset - _HEADER.size - len(entry.path))
    value[:offset] = np.frombuffer(head + checksum + entry.path + padding, np.uint8)


def find_fault(
    value: np.ndarray, fingerprint: bytes, ref: DiskRef, path: bytes, rows: RowShape
) -> str | None:
    """Why a value is not the one asked for, None if it is. Compares every field and byte.

    value  uint8, what the storage returned, of the length it was stored with
    path   raw tokens as the caller knows them, up to `ref.stop`; compared token for token
    """
    if len(value) < _HEADER.size:
        return "truncated"
    raw = value[: _HEADER.size].tobytes()
    (
        magic,
        version,
        element_bytes,
        found_fingerprint,
        namespace,
        home,
        num_path,
        num_own,
        num_layers,
        num_heads,
        head_dim,
        dtype,
        payload_len,
        payload_checksum,
        header_checksum,
    ) = _HEADER.unpack(raw)
    if magic != MAGIC or version != FORMAT_VERSION:
        return "format"
    offset = payload_offset(num_path)
    if len(value) != offset + payload_len:
        return "truncated"
    tokens_stop = _HEADER.size + num_path * TOKEN_BYTES
    found_path = value[_HEADER.size : tokens_stop].tobytes()
    if xxhash.xxh3_128_digest(raw[:-_CHECKSUM_BYTES] + found_path) != header_checksum:
        return "header_checksum"
    if value[tokens_stop:offset].any():
        return "header_checksum"
    if found_fingerprint != fingerprint:
        return "model"
    if namespace != ref.namespace:
        return "namespace"
    shape = (num_layers, num_heads, head_dim, dtype.rstrip(b"\0").decode("latin-1"), element_bytes)
    wanted = (rows.num_layers, rows.num_heads, rows.head_dim, rows.dtype, rows.element_bytes)
    if shape != wanted or payload_len != num_own * rows.num_bytes:
        return "shape"
    entry = Entry(namespace, found_path, num_own, home)
    if not ref.describes(entry) or found_path[: len(path)] != path:
        return "tokens"
    # The tokens behind `ref.stop`, of which the caller has only the key.
    if make_key(fingerprint, entry) != ref.key:
        return "tokens"
    if xxhash.xxh3_128_digest(value[offset:]) != payload_checksum:
        return "payload_checksum"
    return None
