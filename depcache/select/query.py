# SPDX-License-Identifier: Apache-2.0
"""The tokens that a question leans on most, by scores that something else computed.

FusionRAG, section 3.2: each context token has a critical score, the attention that the rows of
the question give its key in the last layer, summed over rows and heads. The k = r N tokens of the
highest score are chosen from all chunks together, so a chunk can get none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def critical_scores(weights: NDArray[np.floating]) -> FloatArray:
    """Sum attention weights to one score for each key (FusionRAG, section 3.2).

    weights  (num_heads, num_rows, num_keys), what each row of the question gives each key

    Returns (num_keys,) float64.
    """
    return weights.sum((0, 1), dtype=np.float64)


def choose_top(scores: NDArray[np.floating], num_chosen: int) -> IntArray:
    """Choose the highest scores of the whole context; the earlier token wins a tie.

    scores      (num_tokens,), one for each context token
    num_chosen  at least 0; more than there are tokens means all of them

    Returns (min(num_chosen, num_tokens),) int64, ascending.
    """
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    return np.sort(order[:num_chosen]).astype(np.int64)


def choose_top_of_chunks(
    scores: NDArray[np.floating], lens: Sequence[int], nums_chosen: Sequence[int]
) -> IntArray:
    """Choose the highest scores of each chunk, with a budget for each (Cache-Craft, section 3.2).

    scores       (num_tokens,), the chunks one behind the other
    lens         tokens of each chunk; their sum is num_tokens
    nums_chosen  how many tokens of each chunk; more than it has means all of them

    Returns indices into `scores`, int64, ascending. Raises ValueError when the lengths do not fit.
    """
    if sum(lens) != len(scores) or len(lens) != len(nums_chosen):
        raise ValueError(
            f"{len(lens)} chunks of {sum(lens)} tokens and {len(nums_chosen)} budgets do not fit "
            f"{len(scores)} scores: give one length and one budget for each chunk"
        )
    ends = np.cumsum(np.asarray(lens, np.int64))
    found = [
        end - length + choose_top(scores[end - length : end], number)
        for end, length, number in zip(ends.tolist(), lens, nums_chosen, strict=True)
    ]
    return np.concatenate(found) if found else np.empty(0, np.int64)
