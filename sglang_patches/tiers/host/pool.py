# SPDX-License-Identifier: Apache-2.0
"""SGLang's host KV pool, made to fit: checked before it is allocated, and usable without a GPU.

Buffer layout is SGLang's `page_first`: (2, num_tokens, layers, heads, head_dim), keys then
values. One token's keys of all layers are one run of bytes, which is what a disk wants.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host import base
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

from depcache.errors import ConfigError
from sglang_patches.compat import host_pool_size
from sglang_patches.tiers.rows import RowShape

LAYOUT = "page_first"
GB = 1_000_000_000  # as SGLang counts --hicache-size
# This share of what is free stays free, up to SGLang's own reserve. SGLang keeps 10 GB
# whatever the machine has, which is all of a small one.
RESERVED_SHARE = 0.25
# Rows are copied in pieces that stay in a core's cache between gather and scatter: of one layer
# when storing, of all when loading. Measured with rows of 256 B and of 2 kB a layer.
STORE_PIECE_BYTES = 128 << 10
LOAD_PIECE_BYTES = 256 << 10
MIN_PIECE = 32


class _Pieces(NamedTuple):
    """Tokens copied at once."""

    store: int
    load: int


class HostPool(MHATokenToKVPoolHost):
    """`MHATokenToKVPoolHost` with page size 1; without a GPU its copies are numpy's."""

    def __init__(self, device_pool: MHATokenToKVPool, num_tokens: int) -> None:
        """Raise ConfigError when the pool's kind or the memory does not allow it."""
        refuse_pool(device_pool)
        self.has_gpu = torch.device(device_pool.device).type != "cpu"
        token_bytes = bytes_per_token(device_pool)
        check_memory(num_tokens * token_bytes)
        with _reserve_of_small_machines():
            super().__init__(
                **host_pool_size(device_pool, num_tokens, token_bytes),
                host_to_device_ratio=0.0,
                page_size=1,
                layout=LAYOUT,
                pin_memory=self.has_gpu,
                device="cpu",
                pool_label="depcache",
            )
        self.device_pool = device_pool
        assert self.size == num_tokens
        self._keys = _as_rows(self.k_buffer)
        self._values = _as_rows(self.v_buffer)
        # Columns of one layer in a row of `_keys` or `_values`.
        self._width = self._keys.shape[1] // self.layer_num
        row_bytes = self.size_per_token // 2
        self._pieces = _Pieces(
            store=max(MIN_PIECE, STORE_PIECE_BYTES * self.layer_num // row_bytes),
            load=max(MIN_PIECE, LOAD_PIECE_BYTES // row_bytes),
        )

    # -- device and host ---------------------------------------------------------------------

    def copy_from_device(self, device_slots: np.ndarray, host_slots: np.ndarray) -> None:
        """All layers of `device_slots` into `host_slots`, on a CPU. Slots are int64 (n,)."""
        sides = [self._device_rows(layer) for layer in range(self.layer_num)]
        staging = np.empty((self._pieces.store, self._width), self._keys.dtype)
        for piece in _cut(len(host_slots), self._pieces.store):
            sources, targets = device_slots[piece], host_slots[piece]
            staged = staging[: len(sources)]
            for layer, (keys, values) in enumerate(sides):
                columns = self._columns(layer)
                # Indices are slots of the pool; "clip" only saves numpy a pass and a buffer.
                np.take(keys, sources, axis=0, out=staged, mode="clip")
                self._keys[targets, columns] = staged
                np.take(values, sources, axis=0, out=staged, mode="clip")
                self._values[targets, columns] = staged

    def copy_to_device(
        self, host_slots: np.ndarray, device_slots: np.ndarray, layer: int | None
    ) -> None:
        """One layer, or all with None, of `host_slots` into `device_slots`, on a CPU."""
        if layer is not None:
            keys, values = self._device_rows(layer)
            keys[device_slots] = self._keys[host_slots, self._columns(layer)]
            values[device_slots] = self._values[host_slots, self._columns(layer)]
            return
        sides = [self._device_rows(number) for number in range(self.layer_num)]
        for piece in _cut(len(host_slots), self._pieces.load):
            key_rows = self._keys[host_slots[piece]]
            value_rows = self._values[host_slots[piece]]
            targets = device_slots[piece]
            for number, (keys, values) in enumerate(sides):
                columns = self._columns(number)
                keys[targets] = key_rows[:, columns]
                values[targets] = value_rows[:, columns]

    def _device_rows(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        # Looked up anew each time: SGLang may replace the buffers.
        pool: Any = self.device_pool
        return _as_rows(pool.k_buffer[layer]), _as_rows(pool.v_buffer[layer])

    def _columns(self, layer: int) -> slice:
        return slice(layer * self._width, (layer + 1) * self._width)

    # -- host and bytes ------------------------------------------------------------------------

    def read_rows(self, host_slots: np.ndarray, out: np.ndarray) -> None:
        """Gather rows into `out`, uint8 (n, bytes_per_token): keys of all layers, then values."""
        index = torch.from_numpy(host_slots)
        half = out.shape[1] // 2
        target = torch.from_numpy(out)
        # index_select with `out` is several times faster than any other gather here.
        torch.index_select(_as_bytes(self.k_buffer), 0, index, out=target[:, :half])
        torch.index_select(_as_bytes(self.v_buffer), 0, index, out=target[:, half:])

    def write_rows(self, host_slots: np.ndarray, rows: np.ndarray) -> None:
        """Scatter rows as `read_rows` gathers them."""
        half = rows.shape[1] // 2
        self._keys[host_slots] = rows[:, :half].view(self._keys.dtype)
        self._values[host_slots] = rows[:, half:].view(self._values.dtype)


def _cut(num_rows: int, piece: int) -> Iterator[slice]:
    for start in range(0, num_rows, piece):
        yield slice(start, start + piece)


def bytes_per_token(device_pool: MHATokenToKVPool) -> int:
    """Bytes of one token's keys and values over all layers."""
    element_bytes = device_pool.store_dtype.itemsize
    row = device_pool.head_num * device_pool.head_dim * device_pool.layer_num
    return 2 * row * element_bytes


def row_shape(device_pool: MHATokenToKVPool) -> RowShape:
    """What one token's row is made of, for the fingerprint and the disk tier."""
    return RowShape(
        num_layers=device_pool.layer_num,
        num_heads=device_pool.head_num,
        head_dim=device_pool.head_dim,
        dtype=str(device_pool.dtype).removeprefix("torch."),
        element_bytes=device_pool.store_dtype.itemsize,
        start_layer=device_pool.start_layer,
    )


def refuse_pool(device_pool: Any) -> None:
    """Raise ConfigError for a device pool whose rows are not plain (heads, head_dim) rows."""
    found = None
    if not isinstance(device_pool, MHATokenToKVPool):
        found = f"a {type(device_pool).__name__}"
    elif device_pool.page_size != 1:
        found = f"page size {device_pool.page_size}"
    elif device_pool.head_dim != device_pool.v_head_dim:
        found = f"keys of {device_pool.head_dim} and values of {device_pool.v_head_dim} channels"
    elif device_pool.is_quantized_kv_cache:
        found = "a quantized KV cache, whose scales are kept apart"
    elif device_pool.kv_cache_layout != "nhd":
        found = f"the KV layout {device_pool.kv_cache_layout!r}"
    elif device_pool.layer_shard_enabled:
        found = "layers spread over ranks"
    if found:
        raise ConfigError(
            f"the host and disk tiers cannot keep this server's KV: it has {found}; "
            "set host_gb and disk_gb to 0, or start SGLang with a plain KV cache"
        )


def check_memory(num_bytes: int) -> None:
    """Raise ConfigError unless `num_bytes` fit into memory and leave a reserve."""
    available = psutil.virtual_memory().available
    usable = max(available - _reserve(available), 0)
    if num_bytes > usable:
        raise ConfigError(
            f"host_gb asks for {num_bytes / GB:.2f} GB, but {available / GB:.2f} GB of memory are "
            f"available and {_reserve(available) / GB:.2f} GB of them stay free: "
            f"use at most {usable / GB:.2f}"
        )


def _reserve(available: int) -> int:
    return min(base.HICACHE_HOST_MEMORY_RESERVE_BYTES, int(available * RESERVED_SHARE))


@contextlib.contextmanager
def _reserve_of_small_machines() -> Iterator[None]:
    # A module constant is the only way to tell SGLang; it is back before anyone else looks.
    kept = base.HICACHE_HOST_MEMORY_RESERVE_BYTES
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = min(
        kept, int(psutil.virtual_memory().available * RESERVED_SHARE)
    )
    try:
        yield
    finally:
        base.HICACHE_HOST_MEMORY_RESERVE_BYTES = kept


def _as_bytes(buffer: torch.Tensor) -> torch.Tensor:
    """(n, ...) as uint8 (n, bytes of a row); the same memory."""
    return buffer.reshape(buffer.shape[0], -1).view(torch.uint8)


def _as_rows(buffer: torch.Tensor) -> np.ndarray:
    """(n, ...) as numpy rows of the widest integer that fits, which copies fastest."""
    rows = _as_bytes(buffer).numpy() if buffer.device.type == "cpu" else np.empty((1, 0), np.uint8)
    return rows.view(np.int64) if rows.shape[1] % 16 == 0 else rows
