# SPDX-License-Identifier: Apache-2.0
"""The plan `blocks`: rows that see everything before them, in blocks, over keys by index.

Where keys stand in the order of the prompt, a recomputed row sees a beginning of them. So a block
of neighbouring rows sees all keys below it without a mask, and only those among which it stands
with one. These stretches do not overlap: all masks together have `BLOCK_ROWS` bits a key, however
many rows there are.

What is below a block is seen by the blocks behind it as well, so it is read by many at once:

    keys     | below all | block 0 | block 1 | block 2 | block 3 |
    below    | all rows  |
    level 0              | 1       |         | 3       |
    level 1              | 2 and 3           |

In level l a stretch of 2**l blocks is seen, whole, by the rows of the 2**l blocks behind it. Every
level has each key once at most; the parts merge by log-sum-exp, as in `cascade`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flashinfer_masks.cascade import Batch
from flashinfer_masks.packed import Runs
from flashinfer_masks.ragged import expand_ranges
from flashinfer_masks.segments import find_chains, gather_chains, plan_segments
from flashinfer_masks.visibility import Step

BLOCK_ROWS = 64


@dataclass(frozen=True, slots=True, eq=False)
class BlocksPlan:
    """The rows of a step that see everything before them, and the others as chains.

    Parts are int64 (R, 4): the queries [part[0], part[1]) of `rows` over the keys [part[2],
    part[3]) of `kv_rows`.

    chains   bottom-right causal: the other new rows, as in `segments`
    rows     (F,) int64, new rows that see everything before them: recomputed, task and output
    indices  (F,) int64, index of each
    kv_rows  (K,) int32, row of each index, which is the key's number; K = indices[-1] + 1
    causal   parts, bottom-right causal: blocks whose rows follow one by one
    masked   parts in which a row sees the keys up to its own index: the other blocks
    levels   parts without a mask, to be merged with the blocks one level after the other
    """

    chains: Batch
    rows: np.ndarray = field(repr=False)
    indices: np.ndarray = field(repr=False)
    kv_rows: np.ndarray = field(repr=False)
    causal: np.ndarray
    masked: np.ndarray
    levels: tuple[np.ndarray, ...]

    def batch(self, parts: np.ndarray) -> Batch:
        """The requests of some of the parts."""
        q_lens, kv_lens = parts[:, 1] - parts[:, 0], parts[:, 3] - parts[:, 2]
        batch = Batch.make(
            parts[:, 0], q_lens, kv_lens, self.kv_rows[expand_ranges(parts[:, 2], kv_lens)]
        )
        rows = self.rows[batch.q_rows].astype(np.int32)
        return Batch(rows, batch.q_indptr, batch.kv_indptr, batch.kv_rows)

    def masked_runs(self) -> list[Runs]:
        """The masks of `masked` as runs, for `packed.pack_runs`: one run for each query."""
        masks: list[Runs] = []
        for first, stop, first_key, stop_key in self.masked.tolist():
            num_keys = stop_key - first_key
            starts = np.arange(stop - first) * num_keys
            num_seen = self.indices[first:stop] - first_key + 1
            masks.append(Runs(starts, starts + num_seen, stop - first, num_keys))
        return masks


def plan_blocks(step: Step) -> BlocksPlan:
    """Cut the rows that see everything before them into blocks. No loop over rows or blocks.

    A step that computes no recomputed row is planned as in `segments`: it has chains alone.

    Raises PlanTooLargeError when the KV rows of the chains would need offsets beyond int32.
    """
    tail_start = step.tail_start
    sees_all = step.structure.sees_all[step.new_indices[:tail_start]]
    if not sees_all.any():
        return _chains_alone(step)
    starts = find_chains(step, 0, tail_start)
    stops = np.append(starts[1:], tail_start)
    is_other = ~sees_all[starts]
    starts, stops = starts[is_other], stops[is_other]
    kv_lens, kv_rows = gather_chains(step, starts, stops, step.num_new)

    rows = np.concatenate((np.flatnonzero(sees_all), np.arange(tail_start, step.num_new)))
    indices = step.new_indices[rows]
    stop, num_tokens = int(indices[-1]) + 1, step.structure.num_tokens
    generated = np.arange(num_tokens, stop, dtype=np.int32)
    keys = np.concatenate((step.row_of[:stop], generated))
    assert (keys >= 0).all(), "what a row sees has no row"
    # The tail is a block of its own, of any length: its rows follow one by one.
    num_context = len(rows) - (step.num_new - tail_start)
    firsts = np.arange(0, num_context, BLOCK_ROWS)
    if tail_start < step.num_new:
        firsts = np.append(firsts, num_context)
    blocks = np.empty((len(firsts), 4), np.int64)
    blocks[:, 0], blocks[:, 1] = firsts, np.append(firsts[1:], len(rows))
    blocks[:, 2], blocks[:, 3] = indices[blocks[:, 0]], indices[blocks[:, 1] - 1] + 1
    is_causal = blocks[:, 1] - blocks[:, 0] == blocks[:, 3] - blocks[:, 2]
    return BlocksPlan(
        chains=Batch.make(starts, stops - starts, kv_lens, kv_rows),
        rows=rows,
        indices=indices,
        kv_rows=keys,
        causal=blocks[is_causal],
        masked=blocks[~is_causal],
        levels=_levels(blocks),
    )


def _levels(blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """Parts that cover, for each block, the keys below it; see the drawing above."""
    first_queries, stop_queries, first_keys, _ = blocks.T
    below = np.array([[0, stop_queries[-1], 0, first_keys[0]]])
    levels = [below] if first_keys[0] else []
    width = 1
    while width < len(blocks):
        right = np.arange(width, len(blocks), 2 * width)
        last = np.minimum(right + width, len(blocks)) - 1
        levels.append(
            np.stack(
                (
                    first_queries[right],
                    stop_queries[last],
                    first_keys[right - width],
                    first_keys[right],
                ),
                axis=1,
            )
        )
        width *= 2
    return tuple(levels)


def _chains_alone(step: Step) -> BlocksPlan:
    plan = plan_segments(step)
    none, no_parts = np.empty(0, np.int64), np.empty((0, 4), np.int64)
    rows = np.arange(step.num_new, dtype=np.int32)
    chains = Batch(rows, plan.q_indptr, plan.kv_indptr, plan.kv_rows)
    return BlocksPlan(chains, none, none, step.row_of[:0], no_parts, no_parts, ())
