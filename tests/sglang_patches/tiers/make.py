# SPDX-License-Identifier: Apache-2.0
"""Real SGLang pools on a CPU, filled with random bits."""

from __future__ import annotations

import numpy as np
import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

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
