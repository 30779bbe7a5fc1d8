# SPDX-License-Identifier: Apache-2.0
"""SGLang's KV slots as host arrays: taken, given back, and the rows of running requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from sglang_patches.compat import row_index
from sglang_patches.contract import CacheParams, Request


class Slots:
    """Slots are int64 numpy arrays; SGLang's own tensors stay inside.

    make_room  evicts at least so many tokens from the cache, as far as it can
    """

    def __init__(self, params: CacheParams, make_room: Callable[[int], object]) -> None:
        self._rows = params.req_to_token_pool
        self._allocator = params.token_to_kv_pool_allocator
        self._device = self._allocator.device
        self._make_room = make_room
        self._none = torch.empty(0, dtype=torch.int64, device=self._device)

    @property
    def capacity(self) -> int:
        """Slots in all."""
        return self._allocator.size

    @property
    def num_free(self) -> int:
        """Slots that nobody owns."""
        return self._allocator.available_size()

    def alloc(self, num_tokens: int) -> np.ndarray | None:
        """(num_tokens,) free slots, evicting where it must; None when there are too few."""
        missing = num_tokens - self.num_free
        if missing > 0:
            self._make_room(missing)
        slots = self._allocator.alloc(num_tokens)
        return None if slots is None else slots.cpu().numpy().astype(np.int64)

    def free(self, slots: np.ndarray) -> None:
        """Give slots back."""
        if len(slots):
            self._allocator.free(torch.from_numpy(slots).to(self._device))

    def free_slots(self) -> np.ndarray:
        """(num_free,) slots that nobody owns, and those given back since the pass began."""
        pool = self._allocator
        free = [pool.free_pages, pool.release_pages, *(pool.free_group or ())]
        return torch.cat(free).cpu().numpy().astype(np.int64)

    def to_device(self, slots: np.ndarray) -> torch.Tensor:
        """The slots as SGLang wants them."""
        return torch.from_numpy(slots).to(self._device) if len(slots) else self._none

    def row(self, req: Request, num_rows: int) -> np.ndarray:
        """(num_rows,) slots of the request's first rows."""
        row = self._rows.req_to_token[row_index(req), :num_rows]
        return row.cpu().numpy().astype(np.int64)

    def row_on_device(self, req: Request, num_rows: int) -> torch.Tensor:
        """The same as a tensor of its own: the row is written again later."""
        row = self._rows.req_to_token[row_index(req), :num_rows]
        return row.to(torch.int64, copy=True)

    def write_row(self, req: Request, start: int, slots: np.ndarray) -> None:
        """Replace the slots of the rows from `start` on."""
        self._rows.write(
            (row_index(req), slice(start, start + len(slots))),
            torch.from_numpy(slots).to(self._device, torch.int32),
        )
