# SPDX-License-Identifier: Apache-2.0
"""The oracle: a dense mask written from the definition of an ancestor, through `parents` alone.

Slow and quadratic on purpose, and blind to everything `Structure.make` derives, so that an
error there shows as a difference. For tests; the plans are `masked`, `segments`, `cascade`.
"""

from __future__ import annotations

import numpy as np

from flashinfer_masks.visibility import Step


def dense_mask(step: Step) -> np.ndarray:
    """bool (num_new, num_rows): may new row i attend to row j.

    DepCache paper, Algorithm 1: 1 for a token and its ancestors, 0 otherwise.
    """
    structure = step.structure
    lens, parents = structure.lens.tolist(), structure.parents.tolist()
    num_segments = len(lens)

    # An ancestor matrix over segments: a child has its parent's ancestors, and itself.
    is_ancestor = np.eye(num_segments, dtype=bool)
    for segment, parent in enumerate(parents):
        if parent >= 0:
            is_ancestor[segment] |= is_ancestor[parent]

    segment_of: list[int] = []
    for segment, num_tokens in enumerate(lens):
        segment_of += [segment] * num_tokens
    context_start = structure.system_len
    task_start = context_start + len(segment_of)

    prompt = np.asarray(step.order).tolist()
    generated = range(len(prompt), step.num_prefix + step.num_new)
    index_of_row = [*prompt, *generated][: step.num_prefix + step.num_new]

    mask = np.zeros((step.num_new, len(index_of_row)), bool)
    for query, i in enumerate(index_of_row[step.num_prefix :]):
        for row, j in enumerate(index_of_row):
            if j > i:
                continue
            if i >= task_start or j < context_start:
                mask[query, row] = True  # the task sees all, and all see the system
            else:
                above = segment_of[j - context_start]
                below = segment_of[i - context_start]
                mask[query, row] = is_ancestor[below, above]
    return mask
