# SPDX-License-Identifier: Apache-2.0
"""The tokens of the highest score, of the whole context and of each chunk."""

from __future__ import annotations

import numpy as np
import pytest

from depcache.select.query import choose_top, choose_top_of_chunks, critical_scores

SCORES = np.array([0.1, 0.9, 0.5, 0.5, 0.0])


@pytest.mark.parametrize(
    ("number", "chosen"), [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (9, [0, 1, 2, 3, 4])]
)
def test_the_highest_scores_are_chosen_the_earlier_of_equals(
    number: int, chosen: list[int]
) -> None:
    assert choose_top(SCORES, number).tolist() == chosen


def test_each_chunk_has_its_own_budget() -> None:
    assert choose_top_of_chunks(SCORES, [2, 3], [1, 1]).tolist() == [1, 2]
    assert choose_top_of_chunks(SCORES, [2, 3], [0, 2]).tolist() == [2, 3]
    assert choose_top_of_chunks(SCORES, [2, 3], [5, 0]).tolist() == [0, 1]
    assert choose_top_of_chunks(np.empty(0), [], []).tolist() == []


def test_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit 5 scores"):
        choose_top_of_chunks(SCORES, [2, 2], [1, 1])


def test_scores_are_summed_over_heads_and_rows() -> None:
    weights = np.array([[[0.25, 0.75], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]])
    assert critical_scores(weights).tolist() == [1.75, 2.25]
