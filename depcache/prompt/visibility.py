# SPDX-License-Identifier: Apache-2.0
"""Who attends to whom: one integer per token, and the dense mask that checks it.

In pre-order the descendants of a token are the tokens right behind it, so the first index
that is no descendant, `end[j]`, replaces a row of the mask (DepCache, section 3.1):

    visible(i, j) = j <= i and (i < end[j] or i >= task_start)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from depcache.prompt.forest import Forest, IntArray


def visible_ends(forest: Forest) -> IntArray:
    """(num_tokens,) int64: `end[j]`, the first index that is no descendant of token j.

    System and task tokens have `num_tokens`: all that follows sees them. A context token has
    the `subtree_stop` of its segment; that the task sees it too is the `i >= task_start` above.
    """
    ends = np.full(forest.num_tokens, forest.num_tokens, np.int64)
    ends[forest.system_len : forest.task_start] = np.repeat(forest.subtree_stops, forest.lens)
    return ends


def dense_mask(forest: Forest) -> NDArray[np.bool_]:
    """(num_tokens, num_tokens) bool: `mask[i, j]` says whether token i attends to token j.

    The oracle: quadratic, for tests and for looking at. It follows parents as Algorithm 1 of
    the paper does and never uses `subtree_stops`, so that it can catch an error in them.
    """
    n, system_len, task_start = forest.num_tokens, forest.system_len, forest.task_start
    mask = np.zeros((n, n), np.bool_)
    mask[:, :system_len] = True
    mask[task_start:, :] = True
    for i in range(forest.num_segments):
        start = system_len + int(forest.lens[:i].sum())
        rows = slice(start, start + int(forest.lens[i]))
        mask[rows, rows] = True
        ancestor = int(forest.parents[i])
        while ancestor >= 0:
            start = system_len + int(forest.lens[:ancestor].sum())
            mask[rows, start : start + int(forest.lens[ancestor])] = True
            ancestor = int(forest.parents[ancestor])
    return mask & np.tri(n, dtype=np.bool_)
