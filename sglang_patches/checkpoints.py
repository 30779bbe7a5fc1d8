# SPDX-License-Identifier: Apache-2.0
"""What SGLang 0.5.23 asks of a cache in place of `cache_unfinished_req` and `cache_finished_req`.

There a request's end is taken apart: the cache inserts, SGLang frees the rows behind the protected
ones and unlocks. Our rows are not that simple, as shifted copies stand between rows of the tree. So
a request's end is served as in 0.5.17, in one go, and leaves SGLang nothing to free or to unlock:

    claim_kv_row   a release begins; it names the request, which `free_kv_row` does not
    checkpoint     of a request that ended: insert, free, unlock
    free_kv_row    the first in a release without a checkpoint: free, unlock
                   else rows of output that nobody will read: SGLang's own way
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache

from sglang_patches import compat
from sglang_patches.contract import Request


class _Cache(Protocol):
    def keep_computed(self, req: Request, num_rows: int, *, is_last: bool) -> None: ...

    def cache_finished_req(
        self, req: Request, is_insert: bool = True, *, kv_len_to_handle: int
    ) -> None: ...

    def release_aborted_request(self, rid: str) -> None: ...

    def forget_waiting(self, rid: str) -> None: ...


class Checkpoints:
    """The calls of 0.5.23, for a cache that has those of 0.5.17. The latter never makes them."""

    _released: Request | None = None  # whose release has begun, and neither inserted nor freed

    def checkpoint(self, req: Request, *, up_to: int, **_: Any) -> None:
        """Insert the rows [0, up_to) of a request that runs on, or ends."""
        cache = cast(_Cache, self)
        if self._released is not req:
            is_last = up_to >= len(req.full_untruncated_fill_ids)
            cache.keep_computed(req, up_to, is_last=is_last)
            return
        self._released = None
        cache.cache_finished_req(req, kv_len_to_handle=up_to)
        compat.set_protected_len(req, up_to)

    def claim_kv_row(self, req: Request) -> bool:
        """Note whose release begins; False: its row is not kept."""
        self._released = req
        return False

    def free_kv_row(self, kv: Any, ranges: list[tuple[int, int]]) -> None:
        """Free the rows in `ranges`, half-open; all of a request that is not cached."""
        req, self._released = self._released, None
        if req is not None:
            num_rows = ranges[-1][1]
            cast(_Cache, self).cache_finished_req(req, False, kv_len_to_handle=num_rows)
        elif any(start < end for start, end in ranges):
            cast(Any, BasePrefixCache).free_kv_row(self, kv, ranges)

    def prefix_device_indices(self, req: Request) -> torch.Tensor:
        """(prefix_len,) slots of the request's hits, between its match and its row."""
        return getattr(req, compat.PREFIX)[: cast(Any, req).prefix_len]

    def finish(self, handle: Any, outcome: Any) -> None:
        """A request has left the waiting queue without running, if `outcome` is an abort."""
        if outcome.name != "SUCCESS":
            cast(_Cache, self).release_aborted_request(handle)
            cast(_Cache, self).forget_waiting(handle.rid)
