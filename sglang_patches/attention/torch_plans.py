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
from flashinfer_masks.masked import plan_masked
from flashinfer_masks.segments import SegmentsPlan, plan_segments
from flashinfer_masks.visibility import Step

# `segments` gathers the rows above every chain again, the system's too; `cascade` computes
# masked scores. Gathering a row took as long as 42 scores with 8 heads of 64 channels, 4 of
# them for keys, on two cores (`python -m eval attention --system-len N`).
ROW_COST_IN_PAIRS = 42

# Requests with at most this many queries are padded to a dense batch (`segments`).
SMALL_QUERIES = 64

# Causal attention skips the keys above the diagonal in blocks of this size. torch's kernel sums
# over blocks of KEY_BLOCK keys, and sums in another order for fewer than MIN_QUERIES queries.
QUERY_BLOCK = 1024
KEY_BLOCK = 512
MIN_QUERIES = 4


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


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention that also returns the log-sum-exp of the scores.

    query         (..., num_heads, num_queries, head_dim)
    keys, values  (..., num_kv_heads, num_keys, head_dim)
    mask          additive, broadcastable to (..., num_heads, num_queries, num_keys)

    Returns (..., num_heads, num_queries, head_dim) and float32 (..., num_heads, num_queries).
    """
    if query.device.type == "cpu":
        # torch's only attention on a CPU that returns the log-sum-exp; grouped heads too.
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, keys, values, 0.0, is_causal, attn_mask=mask, scale=scale
        )
    return attend_generic(query, keys, values, scale, mask, is_causal)


def attend_generic(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """`attend` in plain operations, for any device; quadratic in memory."""
    group = query.shape[-3] // keys.shape[-3]
    keys, values = keys.repeat_interleave(group, -3), values.repeat_interleave(group, -3)
    scores = (query @ keys.transpose(-1, -2)).float() * scale
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp().to(values.dtype) @ values, lse


def merge(first: Tensor, first_lse: Tensor, second: Tensor, second_lse: Tensor) -> Tensor:
    """Attention over the union of two key sets, from the attention over each (log-sum-exp)."""
    weight = torch.sigmoid(first_lse - second_lse).unsqueeze(-1)
    return (second + (first - second) * weight).to(first.dtype)


def attend_causal(
    query: Tensor, keys: Tensor, values: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Bottom-right causal attention of one request: the last query sees every key.

    Shapes as in `attend`. On a CPU every sum runs in the order in which SGLang's own attention
    runs it, which computes the queries of the cached rows as well; so the two agree bit for bit.
    """
    num_queries, num_keys = query.shape[-2], keys.shape[-2]
    num_prefix = num_keys - num_queries
    if num_prefix == 0:
        return attend(query, keys, values, scale, is_causal=True)
    attention = torch.empty_like(query)
    lse = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)
    tail = num_keys % _kernel_query_block(num_keys)
    body_stop = num_queries - min(tail, num_queries) if tail < MIN_QUERIES else num_queries
    for start in range(0, body_stop, QUERY_BLOCK):
        block = slice(start, min(start + QUERY_BLOCK, body_stop))
        # Blocks of keys are cut where they are for the whole request, or the sums would differ.
        seen = -(-(num_prefix + block.stop) // KEY_BLOCK) * KEY_BLOCK
        attention[..., block, :], lse[..., block] = _attend_causal_block(
            query[..., block, :],
            keys[..., :seen, :],
            values[..., :seen, :],
            scale,
            num_prefix + start,
        )
    if body_stop < num_queries:
        last = slice(body_stop, num_queries)
        attention[..., last, :], lse[..., last] = _attend_causal_tail(
            query[..., last, :], keys, values, scale, tail
        )
    return attention, lse


def _kernel_query_block(num_queries: int) -> int:
    """How many queries torch's CPU kernel takes at a time (aten, FlashAttentionKernel.cpp)."""
    if num_queries >= 768:
        return 256
    return 64 if num_queries >= 192 else 32


def _attend_causal_block(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, first_key: int
) -> tuple[Tensor, Tensor]:
    """Attention in which query i sees the keys [0, first_key + i], no block being a tail."""
    num_queries, num_keys = query.shape[-2], keys.shape[-2]
    remainder = num_queries % _kernel_query_block(num_queries)
    if 0 < remainder < MIN_QUERIES:
        query = _pad_front(query, MIN_QUERIES - remainder)
    padding = query.shape[-2] - num_queries
    # With the last query first, the mask's rows are one vector, each a step further along it:
    # the kernel reads it from the cache, and it costs about what the unmasked call costs.
    last_seen = first_key + num_queries - 1
    mask = torch.zeros(num_keys + query.shape[-2] - 1, dtype=query.dtype, device=query.device)
    mask[last_seen + 1 :] = -torch.inf
    mask = mask.as_strided((1, 1, query.shape[-2], num_keys), (0, 0, 1, 1))
    attention, lse = attend(query.flip(-2), keys, values, scale, mask=mask)
    return attention.flip(-2)[..., padding:, :], lse.flip(-1)[..., padding:]


def _attend_causal_tail(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, tail: int
) -> tuple[Tensor, Tensor]:
    """The same for the last queries, as the kernel's last block of `tail` < MIN_QUERIES."""
    num_queries, num_keys = query.shape[-2], keys.shape[-2]
    query = _pad_front(query, _kernel_query_block(1) + tail - num_queries)
    padding = query.shape[-2] - num_queries
    mask = torch.zeros(query.shape[-2], num_keys, dtype=query.dtype, device=query.device)
    mask[padding:] = torch.full_like(mask[padding:], -torch.inf).triu(num_keys - num_queries + 1)
    attention, lse = attend(query, keys, values, scale, mask=mask)
    return attention[..., padding:, :], lse[..., padding:]


def _pad_front(query: Tensor, num_rows: int) -> Tensor:
    return torch.cat([query[..., :1, :].expand(*query.shape[:-2], num_rows, -1), query], -2)


def _gather(pool: Tensor, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """(1, num_kv_heads, num_slots, head_dim) rows of a pool."""
    return pool.index_select(0, slots).to(dtype).transpose(0, 1).unsqueeze(0)


def _heads_first(query: Tensor) -> Tensor:
    return query.transpose(0, 1).unsqueeze(0)


def _additive(mask: np.ndarray, like: Tensor) -> Tensor:
    """bool (..., queries, keys) to 0 / -inf on the device of `like`."""
    hidden = ~torch.from_numpy(mask)
    return torch.zeros(mask.shape).masked_fill_(hidden, -torch.inf).to(like.device)


@dataclass(frozen=True, slots=True, eq=False)
class CausalWork:
    """A plain request, over new rows only. slots (num_rows,) int64."""

    slots: Tensor

    def run(
        self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor, scale: float
    ) -> None:
        rows = _gather(keys, self.slots, query.dtype), _gather(values, self.slots, query.dtype)
        attention, _ = attend_causal(_heads_first(query), *rows, scale)
        output.copy_(attention[0].transpose(0, 1))


class MaskedWork:
    """The plan `custom_mask`: all new rows over all rows, one mask."""

    def __init__(self, step: Step, slots: Tensor) -> None:
        self.slots = slots
        self.mask = _additive(plan_masked(step).mask, slots)

    def run(
        self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor, scale: float
    ) -> None:
        rows = _gather(keys, self.slots, query.dtype), _gather(values, self.slots, query.dtype)
        mask = self.mask.to(query.dtype)
        attention, _ = attend(_heads_first(query), *rows, scale, mask=mask)
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
    mask = _additive(kv[None, None, :] <= last_key[:, :, None], kv_slots)
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
        self.masks = [_additive(mask, slots) for mask in plan.masks()]
        self.context = slice(plan.context_start, plan.tail_start)

    def run(
        self, query: Tensor, keys: Tensor, values: Tensor, output: Tensor, scale: float
    ) -> None:
        q = _heads_first(query)
        lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
        masks: list[Tensor | None] = [mask.to(query.dtype) for mask in self.masks]
        work = [*self.causal, *self.masked]
        for (queries, slots), mask in zip(work, [None] * len(self.causal) + masks, strict=True):
            rows = _gather(keys, slots, query.dtype), _gather(values, slots, query.dtype)
            part = q[:, :, queries]
            if mask is None:
                attention, lse[:, :, queries] = attend_causal(part, *rows, scale)
            else:
                attention, lse[:, :, queries] = attend(part, *rows, scale, mask=mask)
            output[queries] = attention[0].transpose(0, 1)
        for queries, slots in self.system:
            rows = _gather(keys, slots, query.dtype), _gather(values, slots, query.dtype)
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


def make_fastest_work(step: Step, slots: Tensor) -> AttentionWork:
    """The plan `auto`: `cascade` or `segments`, whichever has less to do for this step.

    Where all of the context is cached, what is new sees every row before it: both would be the
    one causal request that a plain prompt is.
    """
    if not step.tail_start:
        return CausalWork(slots)
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
}
