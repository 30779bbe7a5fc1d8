# SPDX-License-Identifier: Apache-2.0
"""Plans of a whole batch: the prompts of one forward pass side by side, as few kernel calls.

A call is what FlashInfer's paged wrappers take with pages of one slot: ragged attention
requests with `q_indptr` and `kv_indptr`. Plain prompts are planned along with the others, since
a wrapper has one kind of mask for all of its requests (FlashInfer 0.6, `plan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal

import numpy as np

from flashinfer_masks.cascade import Batch, cascade_runs, plan_cascade
from flashinfer_masks.fused import plan_blocks
from flashinfer_masks.masked import causal_runs, plan_runs
from flashinfer_masks.packed import PackedMasks, Runs, pack_runs
from flashinfer_masks.ragged import make_indptr
from flashinfer_masks.segments import plan_segments
from flashinfer_masks.visibility import Step

PlanName = Literal["custom_mask", "segments", "cascade", "blocks"]
Kind = Literal["causal", "full", "masked"]

# From an H100 (eval/gpu/runs, `attention_fused.json`), 32 layers and one planning: with 1,224 of
# 4,088 rows computed, 30 % drawn at random, a piece of `segments` costs 1.6 times a masked row.
_ROWS_PER_PIECE = 1.6


@dataclass(frozen=True, slots=True)
class PlainStep:
    """The rows that one forward pass computes of a prompt without trees: each sees all before.

    num_prefix  rows already in the KV cache
    num_new     rows computed now, >= 1
    """

    num_prefix: int
    num_new: int

    @property
    def num_rows(self) -> int:
        return self.num_prefix + self.num_new


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One kernel call: ragged requests over the rows of several prompts.

    kind       causal: bottom-right, the last query of a request sees all of its keys.
               full: every query sees every key. masked: as `masks` says
    batch      queries are rows of the forward pass, counted over all prompts; KV rows are rows
               of the prompt they belong to
    kv_counts  (P,) int64, KV rows of each prompt of the batch, one prompt behind the other
    masks      of each request, packed; None unless masked
    """

    kind: Kind
    batch: Batch
    kv_counts: np.ndarray
    masks: PackedMasks | None = field(default=None, repr=False)

    @property
    def num_queries(self) -> int:
        return len(self.batch.q_rows)


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """What to call for the new rows of all prompts, [0, num_queries) in the order of the batch.

    calls        every row is a query of exactly one of them
    merged       attention of some of the same rows over further keys, to be merged with what was
                 before by log-sum-exp, one after the other
    """

    num_queries: int
    calls: tuple[Call, ...]
    merged: tuple[Call, ...] = ()


def choose_plan(steps: Sequence[Step | PlainStep]) -> PlanName:
    """Returns what `auto` is on FlashInfer: `segments`, or `custom_mask` for scattered rows.

    A piece is a run of new neighbours, which `segments` gives a list of keys of its own. Trees
    have few pieces; rows recomputed one by one are a piece each. Chosen by measurement
    (docs/operate/attention-plans.md).
    """
    num_pieces, num_rows = 0, 0
    for step in steps:
        if isinstance(step, Step):
            num_rows += step.num_new
            if step.structure.recomputed.size:
                new = step.order[step.num_prefix :]
                num_pieces += 1 + int(np.count_nonzero(np.diff(new) != 1))
    return "custom_mask" if _ROWS_PER_PIECE * num_pieces > num_rows else "segments"


def plan_batch(steps: Sequence[Step | PlainStep], plan: PlanName) -> BatchPlan:
    """The calls for one forward pass: at most three, and one a level for the plan `blocks`.

    Raises PlanTooLargeError when a call would need offsets beyond int32.
    """
    num_new = np.array([step.num_new for step in steps], np.int64)
    starts = np.cumsum(num_new) - num_new
    num_queries = int(num_new.sum())
    if plan == "segments":
        parts = [_plain(s) if isinstance(s, PlainStep) else _segments(s) for s in steps]
        return BatchPlan(num_queries, (_join("causal", parts, starts),))
    if plan == "custom_mask":
        return BatchPlan(num_queries, (_custom_mask(steps, starts),))
    parts = [_blocks(s) if plan == "blocks" else _cascade(s) for s in steps]
    masks = [mask for part in parts for mask in part.masks]
    calls = (
        _join("causal", [part.causal for part in parts], starts),
        _join("masked", [part.masked for part in parts], starts, pack_runs(masks)),
    )
    levels = zip_longest(*(part.full for part in parts), fillvalue=_EMPTY)
    merged = tuple(_join("full", level, starts) for level in levels)
    return BatchPlan(
        num_queries,
        tuple(call for call in calls if call.num_queries),
        tuple(call for call in merged if call.num_queries),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """The requests of one prompt, by kind; `full` ones are merged level by level."""

    causal: Batch
    masked: Batch
    masks: Sequence[Runs]
    full: Sequence[Batch]


def _custom_mask(steps: Sequence[Step | PlainStep], starts: np.ndarray) -> Call:
    batches: list[Batch] = []
    masks: list[Runs] = []
    for step in steps:
        if isinstance(step, PlainStep):
            batches.append(_plain(step))
            masks.append(causal_runs(step.num_new, step.num_rows))
        else:
            plan = plan_runs(step)
            batches.append(_one_request(step.num_new, plan.kv_rows))
            masks.append(plan.runs)
    return _join("masked", batches, starts, pack_runs(masks))


def _cascade(step: Step | PlainStep) -> _Parts:
    if isinstance(step, PlainStep):
        return _Parts(_plain(step), _EMPTY, [], [])
    plan = plan_cascade(step)
    return _Parts(plan.causal, plan.masked, cascade_runs(step, plan), [plan.system])


def _blocks(step: Step | PlainStep) -> _Parts:
    if isinstance(step, PlainStep):
        return _Parts(_plain(step), _EMPTY, [], [])
    plan = plan_blocks(step)
    return _Parts(
        _behind(plan.chains, plan.batch(plan.causal)),
        plan.batch(plan.masked),
        plan.masked_runs(),
        [plan.batch(parts) for parts in plan.levels],
    )


def _behind(first: Batch, second: Batch) -> Batch:
    """Returns the requests of both, of one prompt."""
    both = (first, second)
    q_lens = np.concatenate([np.diff(batch.q_indptr) for batch in both])
    kv_lens = np.concatenate([np.diff(batch.kv_indptr) for batch in both])
    return Batch(
        np.concatenate([batch.q_rows for batch in both]),
        make_indptr(q_lens, "query rows"),
        make_indptr(kv_lens, "KV rows"),
        np.concatenate([batch.kv_rows for batch in both]),
    )


def _plain(step: PlainStep) -> Batch:
    """All new rows over all rows."""
    return _one_request(step.num_new, np.arange(step.num_rows, dtype=np.int32))


def _one_request(num_new: int, kv_rows: np.ndarray) -> Batch:
    """Returns the batch of one request: all new rows attend to these rows."""
    return Batch.make(np.zeros(1, np.int64), np.array([num_new]), np.array([len(kv_rows)]), kv_rows)


def _segments(step: Step) -> Batch:
    plan = plan_segments(step)
    return Batch(
        np.arange(step.num_new, dtype=np.int32), plan.q_indptr, plan.kv_indptr, plan.kv_rows
    )


def _join(
    kind: Kind,
    batches: Sequence[Batch],
    starts: np.ndarray,
    masks: PackedMasks | None = None,
) -> Call:
    """The requests of all prompts behind each other.

    starts  (P,) first new row of each prompt in the batch
    """
    q_lens = np.concatenate([np.diff(batch.q_indptr) for batch in batches])
    kv_lens = np.concatenate([np.diff(batch.kv_indptr) for batch in batches])
    return Call(
        kind=kind,
        batch=Batch(
            q_rows=np.concatenate(
                [
                    batch.q_rows + np.int32(start)
                    for batch, start in zip(batches, starts, strict=True)
                ]
            ),
            q_indptr=make_indptr(q_lens.astype(np.int64), "query rows"),
            kv_indptr=make_indptr(kv_lens.astype(np.int64), "KV rows"),
            kv_rows=np.concatenate([batch.kv_rows for batch in batches]),
        ),
        kv_counts=np.array([len(batch.kv_rows) for batch in batches], np.int64),
        masks=masks,
    )


_NONE = np.empty(0, np.int64)
_EMPTY = Batch.make(_NONE, _NONE, _NONE, np.empty(0, np.int32))
