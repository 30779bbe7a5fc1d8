# SPDX-License-Identifier: Apache-2.0
"""Every plan run in float64 numpy: what a backend must compute, and which pairs a plan covers.

Slow and plain, for tests. Queries are the step's new rows, q (num_new, num_heads, head_dim);
keys and values are all its rows, k and v (num_rows, num_heads, head_dim); scale is
1 / sqrt(head_dim). The result is like q. Log-sum-exp here is natural, FlashInfer's is base 2.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flashinfer_masks.cascade import Batch, CascadePlan
from flashinfer_masks.fused import BlocksPlan
from flashinfer_masks.masked import MaskedPlan, causal_mask
from flashinfer_masks.segments import SegmentsPlan

Plan = MaskedPlan | SegmentsPlan | CascadePlan | BlocksPlan


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Masked softmax attention and its log-sum-exp, (queries, heads, dim) and (queries, heads).

    mask  bool (queries, keys), at least one True in every row
    """
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(mask, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    out = np.einsum("hqk,khd->qhd", weights / total, v)
    return out, (top + np.log(total))[..., 0].T


def merge_states(
    out_a: np.ndarray, lse_a: np.ndarray, out_b: np.ndarray, lse_b: np.ndarray
) -> np.ndarray:
    """Attention over the union of two disjoint sets of keys (FlashInfer, "recursive attention")."""
    lse = np.logaddexp(lse_a, lse_b)
    share_a, share_b = np.exp(lse_a - lse), np.exp(lse_b - lse)
    return out_a * share_a[..., None] + out_b * share_b[..., None]


def run_plan(plan: Plan, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The attention output of the new rows, as `plan` says: like q."""
    out, lse = np.full(q.shape, np.nan), np.full(q.shape[:2], np.nan)
    for level in _levels(plan):
        for q_rows, kv_rows, mask in level:
            part, part_lse = attend(q[q_rows], k[kv_rows], v[kv_rows], mask)
            is_first = np.isnan(lse[q_rows]).all()
            if not is_first:
                part, part_lse = (
                    merge_states(out[q_rows], lse[q_rows], part, part_lse),
                    np.logaddexp(lse[q_rows], part_lse),
                )
            out[q_rows], lse[q_rows] = part, part_lse
    return out


def count_pairs(plan: Plan, num_new: int, num_rows: int) -> np.ndarray:
    """How often the plan attends from new row i to row j: int64 (num_new, num_rows)."""
    counts = np.zeros((num_new, num_rows), np.int64)
    for level in _levels(plan):
        for q_rows, kv_rows, mask in level:
            # `add.at`, because `+=` would count a row that a request names twice only once.
            np.add.at(counts, (q_rows[:, None], kv_rows[None, :]), mask)
    return counts


def count_work(plan: Plan) -> int:
    """Score entries that a kernel computes for the plan: the area of its requests.

    Masked entries count, the upper triangle of a causal request does not.
    """
    if isinstance(plan, MaskedPlan):
        return plan.mask.size
    full: list[tuple[SegmentsPlan | Batch, bool]]
    if isinstance(plan, SegmentsPlan):
        full = [(plan, True)]
    elif isinstance(plan, CascadePlan):
        full = [(plan.system, False), (plan.causal, True), (plan.masked, False)]
    else:
        full = [(plan.chains, True), (plan.batch(plan.causal), True)]
        full += [(plan.batch(parts), False) for parts in (plan.masked, *plan.levels)]
    work = 0
    for batch, is_causal in full:
        q_lens = np.diff(batch.q_indptr).astype(np.int64)
        kv_lens = np.diff(batch.kv_indptr).astype(np.int64)
        work += int((q_lens * kv_lens).sum())
        if is_causal:
            work -= int((q_lens * (q_lens - 1) // 2).sum())
    return work


_Request = tuple[np.ndarray, np.ndarray, np.ndarray]  # q rows, KV rows, mask


def _levels(plan: Plan) -> list[list[_Request]]:
    """The requests of the plan, in the order in which their results merge."""
    if isinstance(plan, MaskedPlan):
        num_new, num_rows = plan.mask.shape
        return [[(np.arange(num_new), np.arange(num_rows), plan.mask)]]
    if isinstance(plan, SegmentsPlan):
        q_rows = np.arange(plan.q_indptr[-1])
        batch = Batch(q_rows, plan.q_indptr, plan.kv_indptr, plan.kv_rows)
        return [list(_causal(batch))]
    if isinstance(plan, BlocksPlan):
        masks = [
            np.arange(first_key, stop_key) <= plan.indices[first:stop, None]
            for first, stop, first_key, stop_key in plan.masked.tolist()
        ]
        blocks = [*_causal(plan.chains), *_causal(plan.batch(plan.causal))]
        blocks += _masked(plan.batch(plan.masked), masks)
        return [blocks, *(_full(plan.batch(parts)) for parts in plan.levels)]
    return [
        _full(plan.system),
        [*_causal(plan.causal), *_masked(plan.masked, plan.masks())],
    ]


def _full(batch: Batch) -> list[_Request]:
    return [(q, kv, np.ones((len(q), len(kv)), bool)) for q, kv in _rows(batch)]


def _masked(batch: Batch, masks: list[np.ndarray]) -> list[_Request]:
    return [(q, kv, mask) for (q, kv), mask in zip(_rows(batch), masks, strict=True)]


def _causal(batch: Batch) -> Iterator[_Request]:
    for q_rows, kv_rows in _rows(batch):
        yield q_rows, kv_rows, causal_mask(len(q_rows), len(kv_rows))


def _rows(batch: Batch) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for request in range(batch.num_requests):
        queries = slice(batch.q_indptr[request], batch.q_indptr[request + 1])
        keys = slice(batch.kv_indptr[request], batch.kv_indptr[request + 1])
        yield batch.q_rows[queries], batch.kv_rows[keys]
