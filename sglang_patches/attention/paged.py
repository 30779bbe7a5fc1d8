# SPDX-License-Identifier: Apache-2.0
"""Attention of a whole batch by kernels over a paged pool: who calls what, whoever computes it.

`BatchAttention` gathers queries, runs the calls of a `BatchPlan` and merges what they return;
the kernels behind are FlashInfer's on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from flashinfer_masks.batches import BatchPlan, Call

Merge = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From attention (Q, H, D) and log-sum-exp (Q, H) over two sets of keys: those over both."""


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of one layer: scores, their soft cap (0: none), quantized keys and values."""

    scores: float
    soft_cap: float = 0.0
    keys: float | None = None
    values: float | None = None


class PagedCall(Protocol):
    """A `Call`, planned: run once per layer."""

    def run(
        self, query: Tensor, keys: Tensor, values: Tensor, scales: Scales, *, needs_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of `query`, and its log-sum-exp if it is asked for.

        query         (num_queries, num_heads, head_dim), in the order of the call
        keys, values  (num_slots, num_kv_heads, head_dim), the pool of one layer

        Returns (num_queries, num_heads, head_dim) and float32 (num_queries, num_heads).
        """
        ...


def find_slots(call: Call, req_to_token: Tensor, pool_indices: Tensor) -> Tensor:
    """The pool's slots of all KV rows of a call: int32 (K,), without waiting for the device.

    req_to_token  (requests, rows) of SGLang's pool
    pool_indices  (P,) row of it that each prompt of the batch has
    """
    device = req_to_token.device
    rows = torch.from_numpy(call.batch.kv_rows).to(device, non_blocking=True)
    counts = torch.from_numpy(call.kv_counts).to(device, non_blocking=True)
    owners = torch.repeat_interleave(
        pool_indices.to(torch.int64), counts, output_size=len(call.batch.kv_rows)
    )
    return req_to_token[owners, rows.to(torch.int64)].to(torch.int32)


class BatchAttention:
    """The attention of all new rows of a forward pass, prepared for all layers."""

    def __init__(
        self,
        plan: BatchPlan,
        make_call: Callable[[Call], PagedCall],
        merge: Merge,
        device: torch.device,
    ) -> None:
        """Plan every call.

        make_call  plans one; called once for each, in the order in which they run
        """
        self._num_queries = plan.num_queries
        self._merge = merge
        self._calls = [(_rows_of(call, plan, device), make_call(call)) for call in plan.calls]
        self._merged = [(_rows_of(call, plan, device), make_call(call)) for call in plan.merged]

    def run(self, query: Tensor, keys: Tensor, values: Tensor, scales: Scales) -> Tensor:
        """Shapes as in `PagedCall`; `query` has the rows of the batch in their order."""
        needs_lse = bool(self._merged)
        first_rows, first = self._calls[0]
        if first_rows is None and not needs_lse:
            return first.run(query, keys, values, scales, needs_lse=False)[0]
        output = torch.empty_like(query)
        lse = query.new_empty(query.shape[:2], dtype=torch.float32)
        for rows, call in self._calls:
            part, part_lse = call.run(_take(query, rows), keys, values, scales, needs_lse=needs_lse)
            _put(output, rows, part)
            if part_lse is not None:
                _put(lse, rows, part_lse)
        for rows, call in self._merged:
            part, part_lse = call.run(_take(query, rows), keys, values, scales, needs_lse=True)
            assert part_lse is not None
            both = self._merge(_take(output, rows), _take(lse, rows), part, part_lse)
            _put(output, rows, both[0])
            _put(lse, rows, both[1])
        return output


def _rows_of(call: Call, plan: BatchPlan, device: torch.device) -> Tensor | None:
    """The call's queries as rows of the batch, int64; None if they are all of them in order."""
    rows = call.batch.q_rows
    if len(rows) == plan.num_queries and (rows[1:] > rows[:-1]).all():
        return None
    return torch.from_numpy(rows).to(device, non_blocking=True).to(torch.int64)


def _take(values: Tensor, rows: Tensor | None) -> Tensor:
    return values if rows is None else values.index_select(0, rows)


def _put(target: Tensor, rows: Tensor | None, values: Tensor) -> None:
    if rows is None:
        target.copy_(values)
    else:
        target.index_copy_(0, rows, values.to(target.dtype))
