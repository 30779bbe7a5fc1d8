# SPDX-License-Identifier: Apache-2.0
"""The plan `cascade`: the system once for all queries, then each tree alone, merged by LSE.

Level 0 reads the system rows once, for all new context rows together. Level 1 does each tree's
new rows over the rows of that tree which they see; a tree with one chain is causal, another
has a mask as small as the tree. The two levels of a row merge by their log-sum-exp, as in
FlashInfer's `merge_state` (its documentation, "recursive attention"). No work across trees, but
for what a tree is joined to: these keys stand before its own.

A prompt with recomputed tokens has no trees to go by: its context is planned as in `segments`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from flashinfer_masks.masked import runs_seen
from flashinfer_masks.packed import Runs
from flashinfer_masks.ragged import check_int32, expand_ranges, make_indptr
from flashinfer_masks.segments import find_chains, gather_chains, plan_segments
from flashinfer_masks.visibility import Step


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Ragged attention requests of one kind, ready for one kernel call.

    Request r: the queries q_rows[q_indptr[r] : q_indptr[r + 1]] over
    kv_rows[kv_indptr[r] : kv_indptr[r + 1]].

    q_rows     (q_indptr[-1],) int32, new rows counted from 0; ascending inside a request
    q_indptr   (R + 1,) int32
    kv_indptr  (R + 1,) int32
    kv_rows    (kv_indptr[-1],) int32, rows of this prompt
    """

    q_rows: np.ndarray = field(repr=False)
    q_indptr: np.ndarray
    kv_indptr: np.ndarray
    kv_rows: np.ndarray = field(repr=False)

    @classmethod
    def make(
        cls, q_starts: np.ndarray, q_lens: np.ndarray, kv_lens: np.ndarray, kv_rows: np.ndarray
    ) -> Batch:
        """From each request's first query, query count and KV count, int64 (R,)."""
        return cls(
            q_rows=expand_ranges(q_starts, q_lens).astype(np.int32),
            q_indptr=make_indptr(q_lens, "query rows"),
            kv_indptr=make_indptr(kv_lens, "KV rows"),
            kv_rows=kv_rows,
        )

    @property
    def num_requests(self) -> int:
        return len(self.q_indptr) - 1


@dataclass(frozen=True, slots=True, eq=False)
class CascadePlan:
    """Three batches that cover the new rows of a step.

    system  level 0, no mask: at most one request, all new context rows over the system rows
    causal  bottom-right causal: new system rows, trees with one chain, task and output
    masked  trees with several chains; key x of a request is seen by its queries
            [key_starts[x], key_stops[x]), counted from the request's first

    Every new row is a query of `causal` or of `masked`, exactly once. Those of the context,
    [context_start, tail_start), are queries of `system` too if there is one: merge the two.

    key_starts, key_stops  int32, like masked.kv_rows. O(tree) numbers say what a mask says in
                           O(tree ** 2) bits: a device can make its mask from them.
    """

    system: Batch
    causal: Batch
    masked: Batch
    key_starts: np.ndarray = field(repr=False)
    key_stops: np.ndarray = field(repr=False)
    context_start: int
    tail_start: int

    def masks(self) -> list[np.ndarray]:
        """For each request of `masked` its mask, bool (queries, keys). Views of one array.

        Raises PlanTooLargeError when there are more bits than int32 can count.
        """
        q_lens, kv_lens = np.diff(self.masked.q_indptr), np.diff(self.masked.kv_indptr)
        num_bits = int((q_lens.astype(np.int64) * kv_lens).sum())
        check_int32(num_bits, "mask bits")
        flat = np.empty(num_bits, bool)
        masks = []
        # Small integers compare faster, and they suffice: a tree has at least as many keys as
        # queries, so 2**16 queries would have more bits than the check lets pass.
        starts, stops = self.key_starts.astype(np.uint16), self.key_stops.astype(np.uint16)
        queries = np.arange(q_lens.max(initial=0), dtype=np.uint16)[:, None]
        inside = np.empty(int((q_lens.astype(np.int64) * kv_lens).max(initial=0)), bool)
        first_bit = 0
        kv_indptr = self.masked.kv_indptr.tolist()
        for request, num_queries in enumerate(q_lens.tolist()):
            keys = slice(kv_indptr[request], kv_indptr[request + 1])
            num_keys = keys.stop - keys.start
            stop_bit = first_bit + num_queries * num_keys
            mask = flat[first_bit:stop_bit].reshape(num_queries, num_keys)
            below_stop = inside[: mask.size].reshape(mask.shape)
            np.less_equal(starts[keys], queries[:num_queries], out=mask)
            np.less(queries[:num_queries], stops[keys], out=below_stop)
            np.logical_and(mask, below_stop, out=mask)
            masks.append(mask)
            first_bit = stop_bit
        return masks


def plan_cascade(step: Step) -> CascadePlan:
    """Split the new rows by tree. No loop over segments.

    Raises PlanTooLargeError when the KV rows of a batch would need offsets beyond int32.
    """
    structure = step.structure
    context_start, tail_start = step.context_start, step.tail_start
    if len(structure.recomputed):
        return _plan_recomputed(step)
    context = slice(structure.system_len, structure.task_start)
    queries = step.new_indices[context_start:tail_start]

    # num_before[x]: new context tokens with an index below x. Queries are in pre-order, so
    # those that see token j, the ones in [j, ends[j]), are neighbours: an interval.
    num_before = np.zeros(structure.task_start + 1, np.int32)
    num_before[queries + 1] = 1
    np.cumsum(num_before, out=num_before)
    key_starts = num_before[context]
    key_stops = num_before[structure.ends[context]]
    keys = np.flatnonzero(key_stops > key_starts)
    key_starts, key_stops = key_starts[keys], key_stops[keys]
    keys += structure.system_len

    # One request per tree that has queries.
    tree_stops = np.append(structure.tree_starts[1:], structure.task_start)
    tree_stops = tree_stops[: structure.num_trees]
    q_starts, q_stops = num_before[structure.tree_starts], num_before[tree_stops]
    is_active = q_stops > q_starts
    q_starts, q_stops = q_starts[is_active].astype(np.int64), q_stops[is_active].astype(np.int64)
    kv_stops = np.searchsorted(keys, tree_stops[is_active])
    kv_starts = np.searchsorted(keys, structure.tree_starts[is_active])
    q_lens, kv_lens = q_stops - q_starts, kv_stops - kv_starts
    if len(structure.joined):
        trees = np.flatnonzero(is_active)
        num_joined = structure.joined_lens[trees]
        joined = structure.joined_tokens(trees)
        # Two ranges a tree, of one table: what it is joined to, seen by all, and its own keys.
        ranges = np.stack((len(keys) + np.cumsum(num_joined) - num_joined, kv_starts), axis=1)
        at = expand_ranges(ranges.ravel(), np.stack((num_joined, kv_lens), axis=1).ravel())
        keys = np.concatenate((keys, joined))[at]
        key_starts = np.concatenate((key_starts, np.repeat(q_starts, num_joined)))[at]
        key_stops = np.concatenate((key_stops, np.repeat(q_stops, num_joined)))[at]
        kv_lens = kv_lens + num_joined
    key_rows = step.row_of[keys]
    assert (key_rows >= 0).all(), "an ancestor of a new row has no row"

    # Keys are in pre-order. If a tree's queries are one chain, then all other keys are above
    # it, so the chain comes last and the mask would be the causal one.
    chains = find_chains(step, context_start, tail_start) - context_start
    is_causal = np.searchsorted(chains, q_stops) - np.searchsorted(chains, q_starts) == 1
    of_causal = np.repeat(is_causal, kv_lens)
    has_mask = ~is_causal
    of_masked = ~of_causal
    first_query = np.repeat(q_starts[has_mask], kv_lens[has_mask])

    # System misses see only the system; task and output see every row.
    system_starts = find_chains(step, 0, context_start)
    system_stops = np.append(system_starts[1:], context_start)[: len(system_starts)]
    full_lens, full_rows = gather_chains(step, system_starts, system_stops, tail_start)
    num_tails = len(full_lens) - len(system_starts)
    tail_starts = np.full(num_tails, tail_start)
    tail_lens = np.full(num_tails, step.num_new - tail_start)

    return CascadePlan(
        system=_make_level_0(step),
        causal=Batch.make(
            np.concatenate((system_starts, tail_starts, q_starts[is_causal] + context_start)),
            np.concatenate((system_stops - system_starts, tail_lens, q_lens[is_causal])),
            np.concatenate((full_lens, kv_lens[is_causal])),
            np.concatenate((full_rows, key_rows[of_causal])),
        ),
        masked=Batch.make(
            q_starts[has_mask] + context_start,
            q_lens[has_mask],
            kv_lens[has_mask],
            key_rows[of_masked],
        ),
        key_starts=(key_starts[of_masked] - first_query).astype(np.int32),
        key_stops=(key_stops[of_masked] - first_query).astype(np.int32),
        context_start=context_start,
        tail_start=tail_start,
    )


def cascade_runs(step: Step, plan: CascadePlan) -> list[Runs]:
    """The masks of `plan.masked` as runs, for `packed.pack_runs`: no byte for every element.

    step  what `plan` was made from
    """
    masked = plan.masked
    kv_indptr, q_indptr = masked.kv_indptr.astype(np.int64), masked.q_indptr.astype(np.int64)
    num_keys, num_queries = np.diff(kv_indptr), np.diff(q_indptr)
    # Rows of the context are of this prompt's indices, so rows lead back to what they hold.
    keys, queries = step.indices[masked.kv_rows], step.new_indices[masked.q_rows]
    key_of = np.zeros(step.structure.num_tokens, np.int64)
    numbers = np.arange(len(keys)) - np.repeat(kv_indptr[:-1], num_keys)
    # What several trees are joined to is a key of each of them, with a number in each.
    together = 1 if len(step.structure.joined) else max(1, masked.num_requests)
    seen: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for first in range(0, masked.num_requests, together):
        of_keys = slice(kv_indptr[first], kv_indptr[first + together])
        of_queries = slice(q_indptr[first], q_indptr[first + together])
        key_of[keys[of_keys]] = numbers[of_keys]
        seen.append(runs_seen(step.structure, queries[of_queries], key_of, with_system=False))
    none = (np.empty(0, np.int64),) * 3
    starts, stops, counts = map(np.concatenate, zip(none, *seen, strict=True))
    first_elements = np.arange(len(queries)) - np.repeat(q_indptr[:-1], num_queries)
    first_elements *= np.repeat(num_keys, num_queries)
    first_elements = np.repeat(first_elements, counts)
    starts += first_elements
    stops += first_elements
    cuts = np.concatenate(([0], np.cumsum(counts)))[q_indptr].tolist()
    return [
        Runs(starts[cut:next_cut], stops[cut:next_cut], q_len, kv_len)
        for (cut, next_cut), q_len, kv_len in zip(
            pairwise(cuts), num_queries.tolist(), num_keys.tolist(), strict=True
        )
    ]


def _plan_recomputed(step: Step) -> CascadePlan:
    plan = plan_segments(step)
    none = np.empty(0, np.int64)
    nothing = Batch.make(none, none, none, step.row_of[:0])
    return CascadePlan(
        system=nothing,
        causal=Batch(
            np.arange(step.num_new, dtype=np.int32), plan.q_indptr, plan.kv_indptr, plan.kv_rows
        ),
        masked=nothing,
        key_starts=step.row_of[:0],
        key_stops=step.row_of[:0],
        context_start=step.context_start,
        tail_start=step.tail_start,
    )


def _make_level_0(step: Step) -> Batch:
    """All new context rows over the system rows; no request if there are none of either."""
    num_queries, system_len = step.tail_start - step.context_start, step.structure.system_len
    if num_queries == 0 or system_len == 0:
        none = np.empty(0, np.int64)
        return Batch.make(none, none, none, step.row_of[:0])
    return Batch.make(
        np.array([step.context_start]),
        np.array([num_queries]),
        np.array([system_len]),
        step.row_of[:system_len],
    )
