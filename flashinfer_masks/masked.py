# SPDX-License-Identifier: Apache-2.0
"""The plan `custom_mask`: one request with one bool mask, quadratic in the prompt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashinfer_masks.visibility import Step

# Queries compared at once, so that the temporaries stay in the L2 cache.
_BLOCK_ROWS = 64


@dataclass(frozen=True, slots=True, eq=False)
class MaskedPlan:
    """One request: all new rows over all rows, under `mask`, a bool array (num_new, num_rows)."""

    mask: np.ndarray


def plan_masked(step: Step) -> MaskedPlan:
    """The mask of a step, from `Structure.ends`. O(num_new * num_rows) bytes, vectorised."""
    num_seen = step.num_prefix + step.tail_start
    mask = np.zeros((step.num_new, step.num_rows), bool)
    _fill_context(step, mask[: step.tail_start, :num_seen])
    mask[step.tail_start :, :num_seen] = True
    num_tail = step.num_new - step.tail_start
    mask[step.tail_start :, num_seen:] = causal_mask(num_tail, num_tail)
    return MaskedPlan(mask)


def causal_mask(num_queries: int, num_keys: int) -> np.ndarray:
    """bool (num_queries, num_keys), bottom-right aligned: the last query sees every key.

    For the plain requests of a batch whose other requests have a mask: FlashInfer ignores
    `causal` as soon as a batch has a custom mask.
    """
    return np.tri(num_queries, num_keys, num_keys - num_queries, dtype=bool)


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
