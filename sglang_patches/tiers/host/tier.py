# SPDX-License-Identifier: Apache-2.0
"""Tier HOST: KV rows in main memory, moved for whole batches of scattered slots at once.

Who may touch a slot when, on a GPU (on a CPU every call is done when it returns):

    store   reads device slots after all work of the current stream. Later work of the
            current stream waits for it, and SGLang's forward stream waits for the current
            stream before each step: device slots may be given away as soon as it returns.
    load    on the current stream by default: before whatever is launched there next. With
            `background=True` on a stream of its own; call `CopyInFlight.wait` before the rows
            are used, and give `after` the stream whose launched steps may still use the slots.
    read,   host only; they block until the transfers that touch host memory are done. Call
    write   them from a worker thread, never from the scheduler's.

Host slots that are freed while a transfer still uses them are safe: whatever touches host
memory next waits for the transfers before it.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

from depcache.errors import ConfigError
from sglang_patches.tiers.host.pool import GB, HostPool, bytes_per_token, refuse_pool

IO_BACKEND = "kernel"  # SGLang's copy kernels; `direct` has no `page_first`


class CopyInFlight:
    """A copy that was started. On a CPU it is done before anyone sees it."""

    def __init__(self, events: list[Any] | None = None) -> None:
        """events: one per layer, in order; None when there is nothing to wait for."""
        self._events = events or []

    def is_done(self) -> bool:
        """Whether every layer has arrived; does not block."""
        return not self._events or self._events[-1].query()

    def wait(self, layer: int | None = None) -> None:
        """Make the current stream wait for one layer, or for all; does not block the host."""
        if self._events:
            self._events[-1 if layer is None else layer].wait()


class HostTier:
    """A fixed number of host slots and the copies to and from them.

    Slots are int64 (n,) numpy arrays, in any order, each at most once in a call. `alloc` and
    `free` belong to one thread (the scheduler's); `read` and `write` may be called from others.
    """

    def __init__(self, device_pool: MHATokenToKVPool, capacity_bytes: int) -> None:
        """Raise ConfigError when the pool's kind or the memory does not allow it."""
        refuse_pool(device_pool)
        self.bytes_per_token = bytes_per_token(device_pool)
        num_tokens = int(capacity_bytes) // self.bytes_per_token
        if num_tokens < 1:
            raise ConfigError(
                f"host_gb asks for {capacity_bytes / GB:.6f} GB, less than the "
                f"{self.bytes_per_token} bytes of one token: use more, or 0 for no host tier"
            )
        self.pool = HostPool(device_pool, num_tokens)
        self.counters = {"stored_tokens": 0, "loaded_tokens": 0}
        self._device = device_pool.device
        self._streams: dict[str, Any] = {}
        # Last event by direction and stream; whatever comes next in host memory waits for them.
        self._pending: dict[str, Any] = {}
        self._pending_lock = threading.Lock()
        if self.pool.has_gpu:
            module = torch.get_device_module(self._device)
            self._streams = {"store": module.Stream(), "load": module.Stream()}

    # -- slots ---------------------------------------------------------------------------------

    @property
    def num_tokens(self) -> int:
        """Slots in all."""
        return self.pool.size

    @property
    def num_free(self) -> int:
        """Slots that `alloc` can still give."""
        return self.pool.available_size()

    def alloc(self, num: int) -> np.ndarray | None:
        """`num` slots, None when so many are not free."""
        slots = self.pool.alloc(num)
        return None if slots is None else slots.numpy()

    def free(self, slots: np.ndarray) -> None:
        """Give slots back. A slot that is not in use is an error in the caller (AssertionError)."""
        self.pool.free(torch.from_numpy(slots))

    def clear(self, in_use: np.ndarray | None = None) -> None:
        """Give all slots back but those `in_use`."""
        self.pool.clear()
        if in_use is not None and len(in_use):
            slots = self.alloc(self.num_tokens)
            assert slots is not None
            self.free(np.setdiff1d(slots, in_use))

    # -- device and host ---------------------------------------------------------------------

    def store(self, device_slots: np.ndarray, host_slots: np.ndarray) -> CopyInFlight:
        """Copy all layers from device to host; the device slots may be reused at once."""
        self.counters["stored_tokens"] += len(host_slots)
        if len(host_slots) == 0:
            return CopyInFlight()
        if not self.pool.has_gpu:
            self.pool.copy_from_device(device_slots, host_slots)
            return CopyInFlight()
        return self._store_on_gpu(device_slots, host_slots)

    def load(
        self,
        host_slots: np.ndarray,
        device_slots: np.ndarray,
        layer: int | None = None,
        *,
        background: bool = False,
        after: Any = None,
    ) -> CopyInFlight:
        """Copy one layer, or all with None, from host to device; order as in the module's text.

        after  a further stream whose launched work comes first; only with `background`
        """
        if layer is None or layer == 0:
            self.counters["loaded_tokens"] += len(host_slots)
        if len(host_slots) == 0:
            return CopyInFlight()
        if not self.pool.has_gpu:
            self.pool.copy_to_device(host_slots, device_slots, layer)
            return CopyInFlight()
        return self._load_on_gpu(host_slots, device_slots, layer, background, after)

    # Not run on a GPU yet. Written after HiCacheController.start_writing and start_loading of
    # SGLang 0.5.17, whose kernels these are; the controller itself is bound to SGLang's own
    # write policy and acknowledgement queues.

    def _store_on_gpu(self, device_slots: np.ndarray, host_slots: np.ndarray) -> CopyInFlight:
        module = torch.get_device_module(self._device)
        stream = self._streams["store"]
        current = module.current_stream()
        device_index = self._to_device(device_slots)
        host_index = torch.from_numpy(host_slots)
        if not self.pool.can_use_write_back_jit:
            host_index = host_index.to(self._device, non_blocking=True)
        stream.wait_stream(current)
        with module.stream(stream):
            self._wait_pending(stream, "load")
            self.pool.backup_from_device_all_layer(
                self.pool.device_pool, host_index, device_index, IO_BACKEND
            )
            event = module.Event()
            event.record(stream)
        for index in (device_index, host_index):
            if index.device.type != "cpu":
                index.record_stream(stream)
        current.wait_event(event)
        self._set_pending("store", event)
        return CopyInFlight([event])

    def _load_on_gpu(
        self,
        host_slots: np.ndarray,
        device_slots: np.ndarray,
        layer: int | None,
        background: bool,
        after: Any,
    ) -> CopyInFlight:
        module = torch.get_device_module(self._device)
        current = module.current_stream()
        stream = self._streams["load"] if background else current
        device_index = self._to_device(device_slots)
        host_index = self._to_device(host_slots)
        if background:
            stream.wait_stream(current)
            if after is not None:
                stream.wait_stream(after)
        events = []
        with module.stream(stream):
            self._wait_pending(stream, "store")
            layers = range(self.pool.layer_num) if layer is None else (layer,)
            for number in layers:
                self.pool.load_to_device_per_layer(
                    self.pool.device_pool, host_index, device_index, number, IO_BACKEND
                )
                events.append(module.Event())
                events[-1].record(stream)
        for index in (device_index, host_index):
            index.record_stream(stream)
        # Per stream, because the last event of one stream says nothing about another.
        self._set_pending(f"load on {stream.stream_id}", events[-1])
        return CopyInFlight(events)

    def _to_device(self, slots: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(slots).to(self._device, non_blocking=True)

    def _wait_pending(self, stream: Any, direction: str) -> None:
        with self._pending_lock:
            events = [event for name, event in self._pending.items() if name.startswith(direction)]
        for event in events:
            stream.wait_event(event)

    def _set_pending(self, name: str, event: Any) -> None:
        with self._pending_lock:
            self._pending[name] = event

    def _block_on_pending(self) -> None:
        with self._pending_lock:
            events = list(self._pending.values())
        for event in events:
            event.synchronize()

    # -- host and bytes ------------------------------------------------------------------------

    def read(self, host_slots: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """The rows of `host_slots` as bytes: uint8 (n, bytes_per_token).

        A row is the token's keys of all layers, then its values. `out` is filled if given.
        """
        if out is None:
            out = np.empty((len(host_slots), self.bytes_per_token), np.uint8)
        self._block_on_pending()
        self.pool.read_rows(host_slots, out)
        return out

    def write(self, host_slots: np.ndarray, rows: np.ndarray) -> None:
        """Put rows, as `read` gives them, into `host_slots`."""
        self._block_on_pending()
        self.pool.write_rows(host_slots, rows)

    def describe(self) -> dict[str, Any]:
        """Sizes and counters, for the status route."""
        return {
            "capacity_tokens": self.num_tokens,
            "free_tokens": self.num_free,
            "bytes_per_token": self.bytes_per_token,
            **self.counters,
        }

    def close(self) -> None:
        """Release the memory; pinned memory must be unpinned while the process still runs."""
        self._block_on_pending()
        self.pool.destroy()
