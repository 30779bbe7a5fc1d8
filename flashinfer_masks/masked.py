# SPDX-License-Identifier: Apache-2.0
"""The plan `custom_mask`: one request with one bool mask, quadratic in the prompt."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flashinfer_masks.packed import Runs
from flashinfer_masks.ragged import expand_ranges
from flashinfer_masks.segments import find_breaks, first_own, nodes_of, segments_above
from flashinfer_masks.visibility import Step, Structure

# Queries compared at once, so that the temporaries stay in the L2 cache.
_BLOCK_ROWS = 64


@dataclass(frozen=True, slots=True, eq=False)
class MaskedPlan:
    """One request: all new rows over all rows, under `mask`, a bool array (num_new, num_rows)."""

    mask: np.ndarray


def plan_masked(step: Step) -> MaskedPlan:
    """The mask of a step, from `Structure.ends`. O(num_new * num_rows) bytes, vectorised.

    `plan_runs` and `packed.pack_runs` make FlashInfer's bits without the bytes.
    """
    num_seen = step.num_prefix + step.tail_start
    mask = np.zeros((step.num_new, step.num_rows), bool)
    _fill_context(step, mask[: step.tail_start, :num_seen])
    mask[step.tail_start :, :num_seen] = True
    num_tail = step.num_new - step.tail_start
    mask[step.tail_start :, num_seen:] = causal_mask(num_tail, num_tail)
    return MaskedPlan(mask)


def causal_mask(num_queries: int, num_keys: int) -> np.ndarray:
    """bool (num_queries, num_keys), bottom-right aligned: the last query sees every key."""
    return np.tri(num_queries, num_keys, num_keys - num_queries, dtype=bool)


@dataclass(frozen=True, slots=True, eq=False)
class RunsPlan:
    """The request of `MaskedPlan` with its keys in pre-order, where what a query sees is in runs.

    kv_rows  (num_rows,) int32, row of each key
    runs     of the mask
    """

    kv_rows: np.ndarray = field(repr=False)
    runs: Runs


def plan_runs(step: Step) -> RunsPlan:
    """Plans as `plan_masked`, in O(num_rows + new rows * segments above them)."""
    structure, tail_start = step.structure, step.tail_start
    generated = np.arange(structure.num_tokens, step.num_rows, dtype=np.int32)
    has_row = step.row_of >= 0
    kv_rows = np.concatenate((step.row_of[has_row], generated))
    key_of = np.cumsum(has_row) - has_row  # of each index that has a row

    starts, stops, counts = runs_seen(structure, step.new_indices[:tail_start], key_of)
    tail = np.arange(step.num_prefix + tail_start, step.num_rows)
    starts = np.concatenate((starts, np.zeros_like(tail)))
    stops = np.concatenate((stops, tail + 1))
    counts = np.concatenate((counts, np.ones_like(tail)))
    first_elements = np.repeat(np.arange(step.num_new) * step.num_rows, counts)
    runs = Runs(starts + first_elements, stops + first_elements, step.num_new, step.num_rows)
    return RunsPlan(kv_rows, runs)


def causal_runs(num_queries: int, num_keys: int) -> Runs:
    """The mask of `causal_mask` as runs.

    For the plain requests of a batch whose other requests have a mask: FlashInfer ignores
    `causal` as soon as a batch has a custom mask.
    """
    starts = np.arange(num_queries) * num_keys
    return Runs(
        starts, starts + num_keys - num_queries + 1 + np.arange(num_queries), num_queries, num_keys
    )


def runs_seen(
    structure: Structure, tokens: np.ndarray, key_of: np.ndarray, *, with_system: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The keys that tokens of system and context see, as runs: what is above them and themselves.

    tokens       (Q,) int64, ascending
    key_of       (num_tokens,) int64, the key of every index that is seen; keys are in pre-order
    with_system  whether the system is among the keys

    Returns the first key of each run and the one behind its last, of one token behind those of
    another, int64, and the number of runs of each token, int64 (Q,).
    """
    begins = find_breaks(structure, tokens)
    begins[1:] |= np.diff(tokens) != 1
    pieces = np.flatnonzero(begins)
    starts, lens, num_runs = _ranges_seen(structure, tokens[pieces], with_system=with_system)
    starts = key_of[starts]
    stops = starts + lens
    # All tokens of a piece see the same runs, but of the last one only what is up to them.
    piece_lens = np.diff(pieces, append=len(tokens))
    counts = np.repeat(num_runs, piece_lens)
    at = expand_ranges(np.repeat(np.cumsum(num_runs) - num_runs, piece_lens), counts)
    starts, stops = starts[at], stops[at]
    stops[np.cumsum(counts) - 1] = key_of[tokens] + 1
    return starts, stops, counts


def _ranges_seen(
    structure: Structure, tokens: np.ndarray, *, with_system: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ranges of indices that tokens of system and context see: nodes above, then their own.

    tokens  (P,) int64, ascending

    Returns the first index and the length of each range, of one token behind those of another,
    int64, and the number of ranges of each token, int64 (P,). The own range, from the beginning
    of the token's node, is the last of each; its length is 0.
    """
    num_above, above = segments_above(structure, tokens)
    own_starts = first_own(structure, tokens)
    # The system is above all of the context, and begins with index 0.
    has_system = (own_starts > 0) & (structure.system_len > 0) & with_system
    counts = has_system + num_above + 1
    stops = np.cumsum(counts)
    starts, lens = np.zeros((2, int(stops[-1]) if len(stops) else 0), np.int64)
    starts[stops - 1] = own_starts
    lens[(stops - counts)[has_system]] = structure.system_len
    at = expand_ranges(stops - 1 - num_above, num_above)
    starts[at] = structure.starts[above]
    lens[at] = structure.lens[above]
    return starts, lens, counts


def _fill_context(step: Step, mask: np.ndarray) -> None:
    """Write the rows of system and context into `mask` (tail_start, num_prefix + tail_start)."""
    num_queries, num_seen = mask.shape
    if num_queries == 0:
        return  # and the seen rows may be generated ones, which have no `ends`
    structure = step.structure
    # Prompts below 65,536 tokens compare 16-bit integers, twice as many per instruction.
    dtype = np.uint16 if structure.num_tokens <= 0xFFFF else np.int32
    keys = step.indices[:num_seen].astype(dtype)
    ends = structure.ends[step.indices[:num_seen]].astype(dtype)
    queries = step.new_indices[:num_queries].astype(dtype)[:, None]
    before_end = np.empty((min(_BLOCK_ROWS, num_queries), num_seen), bool)
    for start in range(0, num_queries, _BLOCK_ROWS):
        block = queries[start : start + _BLOCK_ROWS]
        out = mask[start : start + _BLOCK_ROWS]
        inside = before_end[: len(block)]
        np.less_equal(keys, block, out=out)
        np.less(block, ends, out=inside)
        np.logical_and(out, inside, out=out)
    if len(structure.joined):
        _fill_joined(step, mask)
    if len(structure.recomputed):
        again = np.flatnonzero(structure.sees_all[step.new_indices[:num_queries]])
        mask[again] = step.indices[:num_seen] <= step.new_indices[again][:, None]


def _fill_joined(step: Step, mask: np.ndarray) -> None:
    """Let the rows of each joined tree see what it is joined to. `mask` as for `_fill_context`."""
    structure = step.structure
    queries = step.new_indices[: len(mask)]
    segments_of_keys = nodes_of(structure, step.indices[: mask.shape[1]]) - 1
    for root, _ in structure.joins:
        rows = slice(
            int(np.searchsorted(queries, structure.starts[root])),
            int(np.searchsorted(queries, structure.subtree_stops[root])),
        )
        tree = structure.trees[root]
        joined = structure.joined[structure.joined_indptr[tree] : structure.joined_indptr[tree + 1]]
        mask[rows] |= np.isin(segments_of_keys, joined)
