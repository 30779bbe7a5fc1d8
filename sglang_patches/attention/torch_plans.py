# SPDX-License-Identifier: Apache-2.0
"""Run attention plans with torch ops: `plan` once per forward pass, `run` once per layer.

Only new rows are queries; keys and values are gathered from the pool by slot. Each plan is
exact, so they differ in speed alone (docs/operate/attention-plans.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from flashinfer_masks.cascade import Batch, CascadePlan, plan_cascade
from flashinfer_masks.fused import BlocksPlan, plan_blocks
from flashinfer_masks.masked import plan_masked
from flashinfer_masks.segments import SegmentsPlan, plan_segments
from flashinfer_masks.visibility import Step
from sglang_patches.attention.torch_attend import (
    additive,
    attend,
    attend_causal,
    gather,
    heads_first,
    merge,
)

# `segments` gathers the rows above every chain again, the system's too; `cascade` computes
# masked scores. Gathering a row took as long as 42 scores with 8 heads of 64 channels, 4 of
# them for keys, on two cores (`python -m eval attention --system-len N`).
ROW_COST_IN_PAIRS = 42

# Requests with at most this many queries are padded to a dense batch (`segments`).
SMALL_QUERIES = 64


class AttentionWork(Protocol):
    """Attention of one request's new rows, prepared for all layers."""

    def run(
        self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor, scale: float
    ) -> None:
        """Write the attention of `query` into `output`.

        query, output  (num_new, num_heads, head_dim), views of the batch; output is overwritten
        keys, values   (num_slots, num_kv_heads, head_dim), the pool of one layer
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class CausalWork:
    """A plain request, over new rows only. slots (num_rows,) int64."""

    slots: Tensor

    def run(
        self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor, scale: float
    ) -> None:
        rows = gather(keys, self.slots, query.dtype), gather(values, self.slots, query.dtype)
        attention, _ = attend_causal(heads_first(query), *rows, scale)
        output.copy_(attention[0].transpose(0, 1))


class MaskedWork:
    """The plan `custom_mask`: all new rows over all rows, one mask."""

    def __init__(self, step: Step, slots: Tensor) -> None:
        self.slots = slots
        self.mask = additive(plan_masked(step).mask, slots)

    def run(
        self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor, scale: float
    ) -> None:
        rows = gather(keys, self.slots, query.dtype), gather(values, self.slots, query.dtype)
        mask = self.mask.to(query.dtype)
        attention, _ = attend(heads_first(query), *rows, scale, mask=mask)
        output.copy_(attention[0].transpose(0, 1))


@dataclass(frozen=True, slots=True, eq=False)
class _Padded:
    """Requests of similar size as one dense batch, R of them.

    q_rows  (R, max_q) int64 new rows, padded with the request's last one
    slots   (R, max_kv) int64, padded with the request's last one
    mask    (R, 1, max_q, max_kv) additive
    is_new  (R, max_q) bool, False for padding
    """

    q_rows: Tensor
    slots: Tensor
    mask: Tensor
    is_new: Tensor


class SegmentsWork:
    """The plan `segments`: every chain of missed rows is a causal request of its own.

    A GPU kernel takes the ragged batch as it is; torch has no ragged attention on a CPU, so
    requests of similar size are padded to one dense batch.
    """

    def __init__(self, step: Step, slots: Tensor, plan: SegmentsPlan | None = None) -> None:
        plan = plan or plan_segments(step)
        q_lens, kv_lens = np.diff(plan.q_indptr), np.diff(plan.kv_indptr)
        self.large: list[tuple[slice, Tensor]] = []
        self.padded: list[_Padded] = []
        sizes = np.stack([_round_up(q_lens), _round_up(kv_lens)], axis=1)
        kv_rows = torch.from_numpy(plan.kv_rows.astype(np.int64)).to(slots.device)
        kv_slots = slots[kv_rows]
        for max_q, max_kv in np.unique(sizes, axis=0).tolist():
            chosen = np.flatnonzero((sizes == (max_q, max_kv)).all(axis=1))
            if max_q > SMALL_QUERIES or len(chosen) == 1:
                for request in chosen.tolist():
                    queries = slice(*plan.q_indptr[request : request + 2].tolist())
                    keys = slice(*plan.kv_indptr[request : request + 2].tolist())
                    self.large.append((queries, kv_slots[keys]))
                continue
            self.padded.append(
                _pad(
                    plan.q_indptr[chosen],
                    q_lens[chosen],
                    plan.kv_indptr[chosen],
                    kv_lens[chosen],
                    kv_slots,
                )
            )

    def run(
        self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor, scale: float
    ) -> None:
        for queries, slots in self.large:
            CausalWork(slots).run(query[queries], keys, values, output[queries], scale)
        for batch in self.padded:
            shape = (*batch.slots.shape, *keys.shape[1:])
            flat = batch.slots.reshape(-1)
            k = keys.index_select(0, flat).to(query.dtype).view(shape).transpose(1, 2)
            v = values.index_select(0, flat).to(query.dtype).view(shape).transpose(1, 2)
            q = query[batch.q_rows].transpose(1, 2)
            attention, _ = attend(q, k, v, scale, mask=batch.mask.to(query.dtype))
            output[batch.q_rows[batch.is_new]] = attention.transpose(1, 2)[batch.is_new]


def _round_up(lens: np.ndarray) -> np.ndarray:
    """The next power of two, at least 8: few different sizes, at most half of it padding."""
    return 2 ** np.ceil(np.log2(np.maximum(lens, 8))).astype(np.int64)


def _pad(
    q_starts: np.ndarray,
    q_lens: np.ndarray,
    kv_starts: np.ndarray,
    kv_lens: np.ndarray,
    kv_slots: Tensor,
) -> _Padded:
    q = np.arange(q_lens.max())
    kv = np.arange(kv_lens.max())
    q_rows = q_starts[:, None] + np.minimum(q, q_lens[:, None] - 1)
    kv_at = kv_starts[:, None] + np.minimum(kv, kv_lens[:, None] - 1)
    # Bottom-right causal: query i of a request sees its keys [0, i + kv_len - q_len].
    last_key = np.minimum(q, q_lens[:, None] - 1) + (kv_lens - q_lens)[:, None]
    mask = additive(kv[None, None, :] <= last_key[:, :, None], kv_slots)
    device = kv_slots.device
    return _Padded(
        q_rows=torch.from_numpy(q_rows.astype(np.int64)).to(device),
        slots=kv_slots[torch.from_numpy(kv_at.astype(np.int64)).to(device)],
        mask=mask.unsqueeze(1),
        is_new=torch.from_numpy(q < q_lens[:, None]).to(device),
    )


class CascadeWork:
    """The plan `cascade`: the system once for all, each tree alone, merged by log-sum-exp."""

    def __init__(self, step: Step, slots: Tensor, plan: CascadePlan | None = None) -> None:
        plan = plan or plan_cascade(step)
        self.system = _requests(plan.system, slots)
        self.causal = _requests(plan.causal, slots)
        self.masked = _requests(plan.masked, slots)
        self.masks = [additive(mask, slots) for mask in plan.masks()]
        self.context = slice(plan.context_start, plan.tail_start)

    def run(
        self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor, scale: float
    ) -> None:
        q = heads_first(query)
        lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
        masks: list[Tensor | None] = [mask.to(query.dtype) for mask in self.masks]
        work = [*self.causal, *self.masked]
        for (queries, slots), mask in zip(work, [None] * len(self.causal) + masks, strict=True):
            rows = gather(keys, slots, query.dtype), gather(values, slots, query.dtype)
            part = q[:, :, queries]
            if mask is None:
                attention, lse[:, :, queries] = attend_causal(part, *rows, scale)
            else:
                attention, lse[:, :, queries] = attend(part, *rows, scale, mask=mask)
            output[queries] = attention[0].transpose(0, 1)
        for queries, slots in self.system:
            rows = gather(keys, slots, query.dtype), gather(values, slots, query.dtype)
            system, system_lse = attend(q[:, :, queries], *rows, scale)
            tree = output[queries].transpose(0, 1).unsqueeze(0)
            merged = merge(system, system_lse, tree, lse[:, :, queries])
            output[queries] = merged[0].transpose(0, 1)


def _requests(batch: Batch, slots: Tensor) -> list[tuple[slice, Tensor]]:
    """Query rows and key slots of each request of a ragged batch."""
    kv_slots = slots[torch.from_numpy(batch.kv_rows.astype(np.int64)).to(slots.device)]
    q_indptr, kv_indptr = batch.q_indptr.tolist(), batch.kv_indptr.tolist()
    requests = []
    for request in range(batch.num_requests):
        first = int(batch.q_rows[q_indptr[request]])
        queries = slice(first, first + q_indptr[request + 1] - q_indptr[request])
        requests.append((queries, kv_slots[kv_indptr[request] : kv_indptr[request + 1]]))
    return requests


class BlocksWork:
    """The plan `blocks`: keys are gathered once, by index, and what a part sees is a slice.

    Only for steps with recomputed rows; what has none is `segments`.
    """

    def __init__(self, slots: Tensor, plan: BlocksPlan) -> None:
        device = slots.device
        self.chains = _requests(plan.chains, slots)
        self.rows = _slice_or_rows(plan.rows, device)
        self.slots = slots[torch.from_numpy(plan.kv_rows.astype(np.int64)).to(device)]
        indices = torch.from_numpy(plan.indices).to(device)
        self.blocks: list[tuple[slice, slice, Tensor | None]] = [
            (queries, keys, None) for queries, keys in _slices(plan.causal)
        ]
        for queries, keys in _slices(plan.masked):
            hidden = torch.arange(keys.start, keys.stop, device=device) > indices[queries, None]
            mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)
            self.blocks.append((queries, keys, mask))
        self.levels = [_slices(parts) for parts in plan.levels]

    def run(
        self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor, scale: float
    ) -> None:
        for rows, slots in self.chains:
            CausalWork(slots).run(query[rows], keys, values, output[rows], scale)
        q = heads_first(query[self.rows])
        k, v = gather(keys, self.slots, query.dtype), gather(values, self.slots, query.dtype)
        # In float32, because every level would round once more.
        found = torch.empty_like(q, dtype=torch.float32)
        lse = found.new_empty(q.shape[:-1])
        for own, seen, mask in self.blocks:
            part = q[:, :, own], k[:, :, seen], v[:, :, seen], scale
            added = None if mask is None else mask.to(query.dtype)
            found[:, :, own], lse[:, :, own] = attend(*part, mask=added, is_causal=mask is None)
        for level in self.levels:
            for own, seen in level:
                below, below_lse = attend(q[:, :, own], k[:, :, seen], v[:, :, seen], scale)
                found[:, :, own] = merge(found[:, :, own], lse[:, :, own], below, below_lse)
                lse[:, :, own] = torch.logaddexp(lse[:, :, own], below_lse)
        output[self.rows] = found[0].transpose(0, 1).to(output.dtype)


def _slice_or_rows(rows: np.ndarray, device: torch.device) -> slice | Tensor:
    """Returns ascending rows as a slice where they follow one by one: a view, no copy."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return torch.from_numpy(rows).to(device)


def _slices(parts: np.ndarray) -> list[tuple[slice, slice]]:
    """Returns the queries and the keys of parts (R, 4) of a `BlocksPlan`."""
    return [(slice(*part[:2]), slice(*part[2:])) for part in parts.tolist()]


def make_blocks_work(step: Step, slots: Tensor) -> AttentionWork:
    """The plan `blocks`; that is `segments` where no row is recomputed."""
    plan = plan_blocks(step)
    return BlocksWork(slots, plan) if len(plan.rows) else SegmentsWork(step, slots)


def make_fastest_work(step: Step, slots: Tensor) -> AttentionWork:
    """The plan `auto`: `cascade` or `segments`, whichever has less to do for this step.

    Where all of the context is cached, what is new sees every row before it: both would be the
    one causal request that a plain prompt is. Recomputed rows are `blocks`: in the others they
    are a causal request for each few of them (`python -m eval attention --fused`).
    """
    if not step.tail_start:
        return CausalWork(slots)
    if len(step.structure.recomputed):
        return make_blocks_work(step, slots)
    segments, cascade = plan_segments(step), plan_cascade(step)
    if len(segments.kv_rows) * ROW_COST_IN_PAIRS < _count_pairs(cascade):
        return SegmentsWork(step, slots, segments)
    return CascadeWork(step, slots, cascade)


def _count_pairs(plan: CascadePlan) -> float:
    """Scores of the masked trees, and those of the system, which cost half without a mask."""

    def pairs(batch: Batch) -> int:
        return int((np.diff(batch.q_indptr).astype(np.int64) * np.diff(batch.kv_indptr)).sum())

    return pairs(plan.masked) + pairs(plan.system) / 2


WORK_BY_PLAN: dict[str, Callable[[Step, Tensor], AttentionWork]] = {
    "auto": make_fastest_work,
    "custom_mask": MaskedWork,
    "segments": SegmentsWork,
    "cascade": CascadeWork,
    "blocks": make_blocks_work,
}
