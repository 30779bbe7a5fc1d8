# SPDX-License-Identifier: Apache-2.0
"""Move cached rows to other slots and positions in one launch: all layers, keys and values.

What `depcache.position.shift.shift_keys` says, written in Triton: each program takes a few rows
of one layer, turns their keys in float32 by the difference of two RoPE angles, and copies their
values. It reads and writes each row once, so it should run at the speed of a copy.
"""

# ruff: noqa: ANN001, ANN202, N803 (Triton's way to write a kernel)
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from depcache.errors import ConfigError

ROWS = 4
"""How many rows one program of the kernel moves."""


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """The buffers of all layers of a pool.

    keys, values  (L,) int64 on the device, addresses of each layer's buffer, rows of `row_len`
                  elements without gaps
    like          any tensor of the same type as the buffers
    alignment     bytes, a power of two up to 16: all of these addresses are multiples of it
    num_heads     KV heads of a row; row_len = num_heads * head_dim
    """

    keys: Tensor
    values: Tensor
    like: Tensor
    alignment: int
    num_heads: int
    head_dim: int

    @classmethod
    def make(cls, keys: list[Tensor], values: list[Tensor]) -> Layers:
        """The layers of buffers (num_slots, num_heads, head_dim), one a layer.

        Raises ConfigError when they have gaps, or differ in type or shape.
        """
        first = keys[0]
        for buffer in (*keys, *values):
            if (buffer.dtype, buffer.shape) != (first.dtype, first.shape):
                raise ConfigError(
                    f"a layer has KV of {buffer.dtype} {tuple(buffer.shape)}, another of "
                    f"{first.dtype} {tuple(first.shape)}: use the layout 'tree', which moves none"
                )
            if not buffer.is_contiguous():
                raise ConfigError(
                    f"the KV of a layer has strides {buffer.stride()}: use the layout 'tree', "
                    "which moves none"
                )

        def addresses(buffers: list[Tensor]) -> Tensor:
            pointers = [buffer.data_ptr() for buffer in buffers]
            return torch.tensor(pointers, dtype=torch.int64, device=first.device)

        alignment = math.gcd(16, *(buffer.data_ptr() for buffer in (*keys, *values)))
        return cls(addresses(keys), addresses(values), first, alignment, *first.shape[1:])


def move_rows(
    layers: Layers,
    sources: Tensor,
    targets: Tensor,
    homes: Tensor,
    placed: Tensor,
    cos_sin: Tensor,
    *,
    rotary_dim: int,
    is_neox: bool,
) -> None:
    """Copy rows to other slots in every layer, the keys rotated to where they are placed.

    sources, targets  (R,) int64, slots; none of the targets is a source
    homes, placed     (R,) int64, positions
    others            as in `shift_keys`
    """
    num_rows, num_layers = len(sources), len(layers.keys)
    if num_rows == 0:
        return
    sizes = kernel_sizes(
        layers.num_heads, layers.head_dim, rotary_dim, is_neox=is_neox, alignment=layers.alignment
    )
    _move_rows[(triton.cdiv(num_rows, ROWS), num_layers)](
        layers.keys,
        layers.values,
        layers.like,
        sources,
        targets,
        homes,
        placed,
        cos_sin,
        num_rows,
        cos_sin.stride(0),
        **sizes,
    )


def kernel_sizes(
    num_heads: int, head_dim: int, rotary_dim: int, *, is_neox: bool, alignment: int
) -> dict[str, Any]:
    """The constants that the kernel is compiled for, of rows of this shape."""
    half = rotary_dim // 2
    return {
        "NUM_HEADS": num_heads,
        "HEAD_DIM": head_dim,
        "HALF": half,
        "IS_NEOX": is_neox,
        "ALIGNMENT": alignment,
        "ROWS": ROWS,
        "BLOCK_HEADS": triton.next_power_of_2(num_heads),
        "BLOCK_HALF": triton.next_power_of_2(half),
        "BLOCK_REST": triton.next_power_of_2(max(head_dim - rotary_dim, 1)),
        "BLOCK_ROW": triton.next_power_of_2(num_heads * head_dim),
    }


@triton.jit
def _move_rows(
    key_addresses,
    value_addresses,
    like,
    sources,
    targets,
    homes,
    placed,
    cos_sin,
    num_rows,
    table_stride,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    IS_NEOX: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    BLOCK_ROW: tl.constexpr,
):
    layer = tl.program_id(1)
    # An address out of memory could be any: untold, the compiler moves one channel at a time.
    keys = tl.multiple_of(tl.load(key_addresses + layer).to(like.dtype), ALIGNMENT)
    values = tl.multiple_of(tl.load(value_addresses + layer).to(like.dtype), ALIGNMENT)
    row_len: tl.constexpr = NUM_HEADS * HEAD_DIM

    channel = tl.arange(0, BLOCK_HALF)
    is_channel = channel < HALF
    head = tl.arange(0, BLOCK_HEADS)[:, None]
    is_pair = (head < NUM_HEADS) & is_channel[None, :]
    if IS_NEOX:
        low_at = head * HEAD_DIM + channel[None, :]
        high_at = low_at + HALF
    else:
        low_at = head * HEAD_DIM + 2 * channel[None, :]
        high_at = low_at + 1
    rest = tl.arange(0, BLOCK_REST)[None, :]
    rest_at = head * HEAD_DIM + 2 * HALF + rest
    is_rest = (head < NUM_HEADS) & (rest < HEAD_DIM - 2 * HALF)
    element = tl.arange(0, BLOCK_ROW)
    # m * cos and m * sin of the table, m being YaRN's attention factor: keys have it already.
    factor = tl.load(cos_sin + channel, mask=is_channel, other=1.0).to(tl.float32)
    factor = factor * factor

    for i in range(ROWS):
        row = tl.program_id(0) * ROWS + i
        is_row = row < num_rows
        source = tl.load(sources + row, mask=is_row, other=0) * row_len
        target = tl.load(targets + row, mask=is_row, other=0) * row_len
        home = tl.load(homes + row, mask=is_row, other=0) * table_stride + channel
        place = tl.load(placed + row, mask=is_row, other=0) * table_stride + channel
        cos_home = tl.load(cos_sin + home, mask=is_channel, other=0.0).to(tl.float32)
        sin_home = tl.load(cos_sin + home + HALF, mask=is_channel, other=0.0).to(tl.float32)
        cos_place = tl.load(cos_sin + place, mask=is_channel, other=0.0).to(tl.float32)
        sin_place = tl.load(cos_sin + place + HALF, mask=is_channel, other=0.0).to(tl.float32)
        cos = ((cos_place * cos_home + sin_place * sin_home) / factor)[None, :]
        sin = ((sin_place * cos_home - cos_place * sin_home) / factor)[None, :]

        low = tl.load(keys + source + low_at, mask=is_pair & is_row).to(tl.float32)
        high = tl.load(keys + source + high_at, mask=is_pair & is_row).to(tl.float32)
        turned = low * cos - high * sin
        tl.store(keys + target + low_at, turned.to(like.dtype.element_ty), mask=is_pair & is_row)
        turned = high * cos + low * sin
        tl.store(keys + target + high_at, turned.to(like.dtype.element_ty), mask=is_pair & is_row)
        if HEAD_DIM > 2 * HALF:
            plain = tl.load(keys + source + rest_at, mask=is_rest & is_row)
            tl.store(keys + target + rest_at, plain, mask=is_rest & is_row)
        value = tl.load(values + source + element, mask=(element < row_len) & is_row)
        tl.store(values + target + element, value, mask=(element < row_len) & is_row)
