# SPDX-License-Identifier: Apache-2.0
"""Moving KV rows on a GPU: by the RoPE shift against a plain copy, and between host and device.

Rows have the shape of Llama-3-8B's (32 layers, 8 heads of 128 channels, bfloat16) and lie in
scattered slots.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eval.gpu.timing import device_ms
from eval.timing import host_ms

NUM_LAYERS, NUM_HEADS, HEAD_DIM = 32, 8, 128
NUM_ROWS = (500, 2000, 8000)
NUM_POSITIONS = 8192


def measure_moves(repeats: int) -> list[dict[str, Any]]:
    """One row per kind of move and number of rows; `share_of_copy` compares with `copy_`.

    gb_per_s counts what is read and what is written.
    """
    import torch

    rows: list[dict[str, Any]] = []
    for num_rows in NUM_ROWS:
        num_bytes = 2 * num_rows * NUM_LAYERS * NUM_HEADS * HEAD_DIM * torch.bfloat16.itemsize
        source = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        copied_ms = device_ms(lambda t=target, s=source: t.copy_(s), repeats)
        shifted_ms = _shift_ms(num_rows, repeats)
        store_ms, load_ms = _tier_ms(num_rows, repeats)
        times = {"copy": copied_ms, "shift": shifted_ms, "store": store_ms, "load": load_ms}
        for move, ms in times.items():
            rows.append(
                {
                    "move": move,
                    "rows": num_rows,
                    "ms_median": round(ms, 4),
                    "us_per_row": round(1e3 * ms / num_rows, 4),
                    "gb_per_s": round(2 * num_bytes / ms / 1e6, 1),
                    "share_of_copy": round(copied_ms / ms, 3) if move == "shift" else None,
                }
            )
    return rows


def _shift_ms(num_rows: int, repeats: int) -> float:
    import torch

    from sglang_patches.attention.shift_kernel import Layers, move_rows

    rng = torch.Generator("cuda").manual_seed(0)
    shape = (4 * num_rows, NUM_HEADS, HEAD_DIM)
    keys, values = (
        [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(NUM_LAYERS)]
        for _ in range(2)
    )
    slots = torch.randperm(4 * num_rows, generator=rng, device="cuda")
    sources, targets = slots[:num_rows], slots[num_rows : 2 * num_rows]
    homes, placed = (
        torch.randint(0, NUM_POSITIONS, (num_rows,), generator=rng, device="cuda") for _ in range(2)
    )
    table = torch.randn(NUM_POSITIONS, HEAD_DIM, generator=rng, device="cuda")
    layers = Layers.make(keys, values)

    def move() -> None:
        how: Any = {"rotary_dim": HEAD_DIM, "is_neox": True}
        move_rows(layers, sources, targets, homes, placed, table, **how)

    return device_ms(move, repeats)


def _tier_ms(num_rows: int, repeats: int) -> tuple[float, float]:
    """Times of storing to the host and of loading from it, all layers, until the device is done."""
    import torch
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    from sglang_patches.tiers.host.pool import bytes_per_token
    from sglang_patches.tiers.host.tier import HostTier

    pool = MHATokenToKVPool(
        2 * num_rows,
        1,
        torch.bfloat16,
        NUM_HEADS,
        HEAD_DIM,
        NUM_LAYERS,
        "cuda",
        enable_memory_saver=False,
    )
    host = HostTier(pool, 2 * num_rows * bytes_per_token(pool))
    rng = np.random.default_rng(0)
    device_slots = rng.permutation(2 * num_rows)[:num_rows].astype(np.int64) + 1
    allocated = host.alloc(2 * num_rows)
    assert allocated is not None
    host_slots = rng.permutation(allocated)[:num_rows]
    try:
        return (
            host_ms(lambda: host.store(device_slots, host_slots), repeats, torch.cuda.synchronize),
            host_ms(lambda: host.load(host_slots, device_slots), repeats, torch.cuda.synchronize),
        )
    finally:
        host.close()
