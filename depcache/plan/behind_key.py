# SPDX-License-Identifier: Apache-2.0
"""What the KV of a row was computed behind, where that is several chunks that were computed alone.

Such a row sees the system and these chunks, in their order and placed one after the other
(`depcache.prompt.behind`). So its KV is a function of its tokens and of what the key holds, and the
key holds it all: two rows that begin alike share their beginning only behind the same chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from depcache.cache.radix import TOKEN_BYTES, to_key

MARK = -2
"""What such a key begins with: no number of tokens, and not what tails begin with."""


def make_behind_key(system: bytes, chunks: Sequence[bytes]) -> bytes:
    """The `Root.behind` of a row that stands behind these.

    system, chunks  raw int32 tokens
    """
    parts = [_ints(MARK, len(chunks), len(system) // TOKEN_BYTES), system]
    for chunk in chunks:
        parts += (_ints(len(chunk) // TOKEN_BYTES), chunk)
    return b"".join(parts)


def read_behind_key(key: bytes) -> tuple[bytes, list[bytes]] | None:
    """System and chunks of such a key, as they were given; None for any other `Root.behind`."""
    if not key.startswith(_ints(MARK)):
        return None

    def read(at: int) -> tuple[bytes, int]:
        start = at + TOKEN_BYTES
        stop = start + TOKEN_BYTES * int.from_bytes(key[at:start], "little")
        return key[start:stop], stop

    num_chunks = int.from_bytes(key[TOKEN_BYTES : 2 * TOKEN_BYTES], "little")
    system, at = read(2 * TOKEN_BYTES)
    chunks: list[bytes] = []
    for _ in range(num_chunks):
        chunk, at = read(at)
        chunks.append(chunk)
    return system, chunks


def _ints(*values: int) -> bytes:
    return to_key(np.array(values, np.int64))
