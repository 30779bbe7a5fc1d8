# SPDX-License-Identifier: Apache-2.0
"""The plan `segments`: no mask at all, every chain of new rows is a causal request of its own.

A chain is a maximal run of new rows in which every token follows the one before it: a missed
segment, with its first missed child, and so on. All tokens of a chain see what is above its
first token, and each other in order, which is what a causal request over
[system | joined | ancestors | itself] computes when it is aligned to the bottom right. A run of
neighbouring recomputed tokens is a chain over everything before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flashinfer_masks.ragged import check_int32, expand_ranges, make_indptr
from flashinfer_masks.visibility import Step, Structure


@dataclass(frozen=True, slots=True, eq=False)
class SegmentsPlan:
    """Ragged causal requests whose queries are the new rows in row order, without a gather.

    Request r: the new rows [q_indptr[r], q_indptr[r + 1]) over
    kv_rows[kv_indptr[r] : kv_indptr[r + 1]], of which the last are the queries' own.

    q_indptr   (R + 1,) int32, counts new rows from 0
    kv_indptr  (R + 1,) int32
    kv_rows    (kv_indptr[-1],) int32, rows of this prompt; its slots are `slots[kv_rows]`
    """

    q_indptr: np.ndarray
    kv_indptr: np.ndarray
    kv_rows: np.ndarray = field(repr=False)

    @property
    def num_requests(self) -> int:
        return len(self.q_indptr) - 1


def plan_segments(step: Step) -> SegmentsPlan:
    """Cut the new rows into chains; task and output are one request over all rows.

    Raises PlanTooLargeError when kv_rows would need offsets beyond int32.
    """
    starts, tail_start = find_chains(step, 0, step.tail_start), step.tail_start
    # When the last chain sees every row before it, the task just continues it. So a prompt
    # that does not branch stays the one causal request that it is in a stock engine.
    if (
        len(starts)
        and tail_start < step.num_new
        and num_above(step, starts[-1:])[0] == step.num_prefix + starts[-1]
    ):
        starts, tail_start = starts[:-1], int(starts[-1])
    stops = np.append(starts[1:], tail_start)[: len(starts)]
    kv_lens, kv_rows = gather_chains(step, starts, stops, tail_start)
    firsts = np.append(starts, tail_start) if tail_start < step.num_new else starts
    q_indptr = np.append(firsts, step.num_new).astype(np.int32)
    assert q_indptr[0] == 0
    return SegmentsPlan(q_indptr, make_indptr(kv_lens, "KV rows"), kv_rows)


def find_chains(step: Step, start: int, stop: int) -> np.ndarray:
    """Where chains begin among the new rows [start, stop), none of them task: int64 (C,)."""
    tokens = step.new_indices[start:stop]
    return np.flatnonzero(find_breaks(step.structure, tokens)) + start


def find_breaks(structure: Structure, tokens: np.ndarray) -> np.ndarray:
    """Which of the tokens does not see just what the one before it sees, and that one.

    tokens  (Q,) int64, indices of system and context, ascending; the first is a break. bool (Q,)
    """
    begins = np.ones(len(tokens), bool)
    begins[1:] = structure.parent_tokens[tokens[1:]] != tokens[:-1]
    if len(structure.recomputed):
        sees_all = structure.sees_all[tokens]
        is_same = sees_all[1:] == sees_all[:-1]
        both = sees_all[1:] & sees_all[:-1]
        begins[1:] = np.where(both, np.diff(tokens) != 1, begins[1:] | ~is_same)
    return begins


def num_above(step: Step, new_rows: np.ndarray) -> np.ndarray:
    """How many tokens the given new rows (C,) of system and context see above them: int64 (C,)."""
    structure = step.structure
    tokens = step.new_indices[new_rows]
    nodes = nodes_of(structure, tokens)
    num_seen = structure.node_above[nodes] + tokens - structure.node_starts[nodes]
    if len(structure.recomputed):
        num_seen = np.where(structure.sees_all[tokens], tokens, num_seen)
    return num_seen


def segments_above(structure: Structure, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The segments that are seen from above those that hold the given tokens, in pre-order.

    tokens  (P,) int64, indices of system and context, ascending

    Returns how many each has, int64 (P,), and the segments, of one token behind those of another:
    those that its tree is joined to, then its ancestors, root first. None for recomputed tokens.
    """
    if len(structure.recomputed):
        others = np.flatnonzero(~structure.sees_all[tokens])
        counts = np.zeros(len(tokens), np.int64)
        counts[others], segments = _segments_above(structure, tokens[others])
        return counts, segments
    return _segments_above(structure, tokens)


def _segments_above(structure: Structure, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns what `segments_above` does, for tokens that are not recomputed."""
    nodes = nodes_of(structure, tokens)
    counts = np.maximum(structure.node_levels[nodes] - 1, 0)
    joined: np.ndarray | None = None
    if len(structure.joined):
        # The trees of the tokens, -1 for the system, for which the last entry stands.
        trees = np.append(structure.trees, -1)[nodes - 1]
        joined_counts = np.append(np.diff(structure.joined_indptr), 0)[trees]
        joined = expand_ranges(structure.joined_indptr[trees], joined_counts)
        counts += joined_counts
    firsts = np.cumsum(counts) - counts
    segments = np.empty(int(counts.sum()), np.int64)
    if joined is not None:
        segments[expand_ranges(firsts, joined_counts)] = structure.joined[joined]
        firsts = firsts + joined_counts
    # Tokens are in pre-order, so those below a whole segment are neighbours; and a segment's
    # place in each of their lists is its level. Hence no walk up the tree.
    first_below = np.searchsorted(tokens, structure.starts + structure.lens)
    num_below = np.searchsorted(tokens, structure.subtree_stops) - first_below
    at = np.repeat(structure.node_levels[1:] - 1, num_below)
    at += firsts[expand_ranges(first_below, num_below)]
    segments[at] = np.repeat(np.arange(structure.num_segments), num_below)
    return counts, segments


def gather_chains(
    step: Step, starts: np.ndarray, stops: np.ndarray, tail_start: int
) -> tuple[np.ndarray, np.ndarray]:
    """The KV rows of the chains [start, stop), then of the tail [tail_start, num_new) if any.

    starts, stops  (C,) int64, new rows of system and context, ascending
    tail_start     new row from which on all is causal over every row; num_new for no tail

    Returns the number of KV rows of each request, int64 (C or C + 1,), and the rows, int32.
    Raises PlanTooLargeError, before it allocates, when there are more rows than int32 counts.
    """
    kv_lens = num_above(step, starts) + stops - starts
    if tail_start < step.num_new:
        kv_lens = np.append(kv_lens, step.num_rows)
    check_int32(int(kv_lens.sum()), "KV rows")
    kv_rows = _gather_below_system(step, starts, stops, tail_start)
    kv_rows = _insert_system(step, starts, kv_lens, kv_rows)
    assert kv_rows.min(initial=0) >= 0, "an ancestor of a new row has no row"
    return kv_lens, kv_rows


def _gather_below_system(
    step: Step, starts: np.ndarray, stops: np.ndarray, tail_start: int
) -> np.ndarray:
    """What `gather_chains` returns, but chains of the context without the system."""
    structure = step.structure
    tokens = step.new_indices[starts]
    # A chain is a list of ranges, root first: the segments above its own, its own up to the
    # chain, the chain itself. Ranges of indices and ranges of rows share one table.
    table = np.concatenate((step.row_of, np.arange(step.num_rows, dtype=np.int32)))
    num_above, above = segments_above(structure, tokens)
    last = np.cumsum(num_above + 2) - 1
    range_starts = np.empty(len(above) + 2 * len(tokens) + 1, np.int64)
    range_lens = np.empty_like(range_starts)
    range_starts[last] = structure.num_tokens + step.num_prefix + starts
    range_lens[last] = stops - starts
    own_starts = first_own(structure, tokens)
    range_starts[last - 1] = own_starts
    range_lens[last - 1] = tokens - own_starts
    at = expand_ranges(last - 1 - num_above, num_above)
    range_starts[at] = structure.starts[above]
    range_lens[at] = structure.lens[above]
    range_starts[-1] = structure.num_tokens
    range_lens[-1] = step.num_rows if tail_start < step.num_new else 0
    return table[expand_ranges(range_starts, range_lens)]


def _insert_system(
    step: Step, starts: np.ndarray, kv_lens: np.ndarray, kv_rows: np.ndarray
) -> np.ndarray:
    """Put the system's rows before those of each chain of the context.

    By plain copies: they are most of all rows, and the same for every chain.
    """
    system_len = step.structure.system_len
    num_system_chains = int(np.searchsorted(starts, step.context_start))
    if system_len == 0 or num_system_chains == len(starts):
        return kv_rows
    system_rows = step.row_of[:system_len]
    lens = kv_lens[: len(starts)].copy()
    lens[num_system_chains:] -= system_len
    cuts = np.cumsum(lens).tolist()
    cut = cuts[num_system_chains - 1] if num_system_chains else 0
    pieces = [kv_rows[:cut]]
    for next_cut in cuts[num_system_chains:]:
        pieces += (system_rows, kv_rows[cut:next_cut])
        cut = next_cut
    pieces.append(kv_rows[cut:])
    return np.concatenate(pieces)


def first_own(structure: Structure, tokens: np.ndarray) -> np.ndarray:
    """Where the last range begins that each token of system and context sees, int64 like `tokens`.

    That of its own node; of a recomputed one everything from behind the system.
    """
    starts = structure.node_starts[nodes_of(structure, tokens)]
    if len(structure.recomputed):
        starts[structure.sees_all[tokens]] = structure.system_len
    return starts


def nodes_of(structure: Structure, tokens: np.ndarray) -> np.ndarray:
    """The node that holds each index: int64, like `tokens`."""
    return np.searchsorted(structure.node_starts, tokens, side="right") - 1
