# SPDX-License-Identifier: Apache-2.0
"""The kernel that moves rows against torch: `shift_keys` and a copy, layer by layer."""

from __future__ import annotations

from typing import Any

import torch

from depcache.position.shift import shift_keys


def make_table(rotary_dim: int, num_positions: int, factor: float = 1.0) -> torch.Tensor:
    """(num_positions, rotary_dim): cosines, then sines, times YaRN's attention factor."""
    frequencies = 10000 ** (-torch.arange(0, rotary_dim, 2) / rotary_dim)
    angles = torch.arange(num_positions)[:, None] * frequencies
    return factor * torch.cat((angles.cos(), angles.sin()), dim=-1)


def assert_rows_move_as_by_torch(
    kernel: Any,
    *,
    shape: tuple[int, int, int],
    num_rows: int,
    table: torch.Tensor,
    dtype: torch.dtype,
    is_neox: bool,
    atol: float,
    device: str = "cpu",
    num_layers: int = 3,
) -> None:
    """Moved rows are torch's, and all others are as they were.

    kernel  the module `sglang_patches.attention.shift_kernel`
    shape   (num_slots, num_heads, head_dim) of a layer
    """
    rng = torch.Generator().manual_seed(shape[1] * shape[2])

    def draw() -> list[torch.Tensor]:
        layers = [torch.randn(shape, generator=rng) for _ in range(num_layers)]
        return [layer.to(device, dtype) for layer in layers]

    keys, values = draw(), draw()
    slots = torch.randperm(shape[0], generator=rng).to(device)
    sources, targets = slots[:num_rows], slots[num_rows : 2 * num_rows]
    homes, placed = (
        torch.randint(0, len(table), (num_rows,), generator=rng).to(device) for _ in range(2)
    )
    table = table.to(device)
    how: dict[str, Any] = {"rotary_dim": table.shape[1], "is_neox": is_neox}
    expected_keys = [each.clone() for each in keys]
    expected_values = [each.clone() for each in values]
    for key, value in zip(expected_keys, expected_values, strict=True):
        key[targets] = shift_keys(key[sources], homes, placed, table, **how)
        value[targets] = value[sources]

    layers = kernel.Layers.make(keys, values)
    kernel.move_rows(layers, sources, targets, homes, placed, table, **how)
    for mine, expected in zip(keys, expected_keys, strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=atol)
    for mine, expected in zip(values, expected_values, strict=True):
        assert torch.equal(mine, expected)
