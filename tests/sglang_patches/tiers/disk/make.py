# SPDX-License-Identifier: Apache-2.0
"""Real SGLang pools on a CPU, filled with random bits; nodes and values for the disk tier."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

from sglang_patches.tiers.disk.fingerprint import Fingerprint
from sglang_patches.tiers.disk.operation import Finished
from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.disk.value import DiskRef, Entry
from sglang_patches.tiers.rows import RowShape
from tests.helpers.ends import SLOWEST_S

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def make_pool(
    dtype: torch.dtype = torch.float32,
    *,
    num_tokens: int = 64,
    num_heads: int = 2,
    head_dim: int = 16,
    num_layers: int = 3,
    seed: int = 0,
) -> MHATokenToKVPool:
    """A device pool of random bit patterns: NaN, infinities and signed zeros included."""
    pool = MHATokenToKVPool(
        num_tokens, 1, dtype, num_heads, head_dim, num_layers, "cpu", enable_memory_saver=False
    )
    rng = np.random.default_rng(seed)
    for buffer in (*pool.k_buffer, *pool.v_buffer):
        flat = buffer.view(torch.uint8).reshape(-1)
        flat.copy_(torch.from_numpy(rng.integers(0, 256, flat.numel(), dtype=np.uint8)))
    return pool


def bits(pool: MHATokenToKVPool, slots: np.ndarray) -> np.ndarray:
    """Every bit of `slots`, (num_slots, bytes): plain indexing, nothing of ours."""
    index = torch.from_numpy(np.asarray(slots, np.int64))
    rows = [buffer[index].view(torch.uint8) for buffer in (*pool.k_buffer, *pool.v_buffer)]
    return torch.cat([row.reshape(len(index), -1) for row in rows], dim=1).numpy().copy()


def scattered(rng: np.random.Generator, num: int, out_of: int) -> np.ndarray:
    """`num` different slots in no order; never slot 0, SGLang's padding."""
    return rng.permutation(out_of)[:num].astype(np.int64) + 1


def make_rows(rng: np.random.Generator, num: int, num_bytes: int) -> np.ndarray:
    """Random rows, uint8 (num, num_bytes)."""
    return rng.integers(0, 256, (num, num_bytes), dtype=np.uint8)


ROWS = RowShape(
    num_layers=2, num_heads=1, head_dim=4, dtype="float32", element_bytes=4, start_layer=0
)


def make_print(**facts: str) -> Fingerprint:
    """A fingerprint of made-up facts."""
    return Fingerprint({"config": "c", "weights": "w", **facts}, ROWS)


MARK = make_print()
MANY = 1 << 30
"""Bytes, more than a test stores."""


def make_entry(
    fingerprint: Fingerprint,
    path: list[int],
    num_own: int,
    *,
    namespace: tuple[str | None, str] = (None, "tree"),
) -> Entry:
    """A node at the end of `path`; home as in layout `tree`."""
    raw = np.array(path, "<i4").tobytes()
    digest = fingerprint.namespace_digest(namespace)
    return Entry(digest, raw, num_own, home=len(path) - num_own)


def make_node(
    rng: np.random.Generator, path: list[int], num_own: int = 2
) -> tuple[Entry, np.ndarray]:
    """The last `num_own` tokens of `path` under MARK, and random rows for them."""
    return make_entry(MARK, path, num_own), make_rows(rng, num_own, ROWS.num_bytes)


def store_all(tier: DiskTier, nodes: list[tuple[Entry, np.ndarray]]) -> list[DiskRef]:
    """Store and wait; every one must succeed."""
    tickets = [tier.store(entry, rows) for entry, rows in nodes]
    done = {one.ticket: one for one in tier.drain(SLOWEST_S)}
    refs = [done[ticket].ref for ticket in tickets if ticket is not None]
    assert len(refs) == len(nodes)
    assert all(ref is not None for ref in refs)
    return [ref for ref in refs if ref is not None]


def load_one(tier: DiskTier, ref: DiskRef, entry: Entry) -> Finished:
    """Load and wait; a miss at once counts as finished."""
    path = entry.path[: 4 * ref.path_len]
    ticket = tier.load(ref, path, entry.namespace)
    if ticket is None:
        return Finished(0, "load", False, "at once", ref)
    (finished,) = tier.drain(SLOWEST_S)
    assert finished.ticket == ticket
    return finished


def look(tier: DiskTier, hear: Callable[[], Any]) -> list[Any]:
    """What `hear` gives before and after a look at the neighbours, which must be due."""
    before = hear()
    deadline = time.monotonic() + SLOWEST_S
    while tier._neighbours._lane.num_open:  # pyright: ignore[reportPrivateUsage]
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return [before, hear()]


class Clock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
