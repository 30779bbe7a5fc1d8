# SPDX-License-Identifier: Apache-2.0
"""Budgets that are spent by scores: how many tokens, from which, and none of them twice."""

from __future__ import annotations

import numpy as np
import pytest

from depcache.errors import PromptError
from depcache.prompt.forest import Forest
from depcache.prompt.recompute import Recompute, Select
from depcache.select import ByScore, num_selected, select, selectable

# system 0-1 | row 2-4 | row 5-8 | row 9-10 | task 11
ROWS = Forest.make(12, 2, [3, 4, 2], [-1, -1, -1])
SCORES = np.array([9.0, 8.0, 7.0, 0.1, 0.2, 0.3, 0.4, 0.2, 0.1])  # of tokens 2-10


def choose(share: float, name: Select) -> list[int]:
    by_score = ByScore.of(ROWS, Recompute(share, name))
    assert by_score is not None
    return by_score.choose(ROWS, SCORES[None]).tolist()


@pytest.mark.parametrize(
    ("share", "expected"), [(0.1, [8]), (0.25, [7, 8]), (0.45, [6, 7, 8, 9]), (1, range(5, 11))]
)
def test_the_highest_of_all_rows_but_the_first_are_chosen(
    share: float, expected: list[int]
) -> None:
    for name in ("query", "query-context", "deviation"):
        assert choose(share, name) == list(expected)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.1, [8]), (0.25, [5, 8]), (0.35, [5, 7, 8]), (0.55, [5, 6, 7, 8, 9])]
)
def test_half_are_first_tokens_and_the_rest_the_highest_of_the_others(
    share: float, expected: list[int]
) -> None:
    assert choose(share, "mixed") == expected


@pytest.mark.parametrize(
    ("share", "name", "expected"),
    [
        (0.25, "query", [8, 10]),  # one of four tokens, and one of two, where global has the best
        (0.5, "query", [7, 8, 10]),
        (0.5, "mixed", [5, 8, 10]),
        (1, "mixed", range(5, 11)),
    ],
)
def test_a_budget_of_each_row_takes_the_highest_of_it(
    share: float, name: Select, expected: list[int]
) -> None:
    scores = SCORES.copy()
    scores[-1] = 0.35
    by_score = ByScore.of(ROWS, Recompute(share, name, budget="chunk"))
    assert by_score is not None
    assert by_score.choose(ROWS, scores[None]).tolist() == list(expected)


def test_no_token_is_chosen_twice() -> None:
    by_score = ByScore.of(ROWS, Recompute(0.45, "mixed"))
    assert by_score is not None and by_score.taken.tolist() == [5, 9]
    highest_are_taken = np.array([0, 0, 0, 9.0, 0, 0, 1.0, 9.0, 0.5])
    assert by_score.choose(ROWS, highest_are_taken[None]).tolist() == [5, 8, 9, 10]


def test_what_a_row_stands_behind_decides_what_can_be_chosen() -> None:
    alone = ByScore.of(ROWS, Recompute(1, "query"))
    assert alone is not None
    assert alone.choose(ROWS, SCORES[None]).tolist() == list(range(5, 11))  # not the first row
    seen = np.array([-12, 3, 0])  # the first behind something else, the second behind the first
    behind = ByScore.of(ROWS, Recompute(1, "query"), seen)
    assert behind is not None
    assert behind.choose(ROWS, SCORES[None]).tolist() == [2, 3, 4, 9, 10]


@pytest.mark.parametrize("name", ["first", "random"])
def test_other_selectors_need_no_scores(name: Select) -> None:
    assert ByScore.of(ROWS, Recompute(0.5, name)) is None
    assert ByScore.of(ROWS, Recompute(select="given", selected=(5,))) is None


@pytest.mark.parametrize(("name", "second"), [("first", 5), ("query", 8), ("mixed", 8)])
def test_what_is_chosen_out_of_focus_is_dropped(name: Select, second: int) -> None:
    recompute = Recompute(0.25, name, budget="chunk", focus="settle")
    by_score = ByScore.of(ROWS, recompute)
    assert by_score is not None and by_score.has_focus
    layers = np.zeros((3, 9))
    layers[:2, 7], layers[2] = 9.0, SCORES
    layers[:, 0] = 8.0
    # One token of each row but the first. Sums of the rows: 39, 1, 18.3.
    assert by_score.choose(ROWS, layers).tolist() == [9]
    # 24, 1, 0.3: what is nearly all of the fall is not the cut.
    assert by_score.choose(ROWS, SCORES[None]).tolist() == [second]


def test_indices_that_were_given_have_no_focus() -> None:
    with pytest.raises(PromptError, match="depcache_focus came with the selector given"):
        Recompute(select="given", selected=(5,), focus="settle")
    with pytest.raises(PromptError, match="with the selector deviation, which asks no question"):
        Recompute(select="deviation", focus="settle")
    with pytest.raises(PromptError, match="'all' is no focus: use one of settle, or None"):
        Recompute(focus="all")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["query", "query-context", "mixed", "deviation"])
def test_nothing_is_scored_where_nothing_is_chosen(name: Select) -> None:
    assert ByScore.of(ROWS, Recompute(0, name)) is None
    chain = Forest.make(12, 2, [3, 4, 2], [-1, 0, 1])
    assert ByScore.of(chain, Recompute(0.5, name)) is None
    assert not len(select(chain, Recompute(0.5, name)))


@pytest.mark.parametrize("name", ["query", "query-context", "mixed", "deviation"])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
def test_as_many_tokens_stand_in_until_there_are_scores(name: Select, share: float) -> None:
    stand_in = select(ROWS, Recompute(share, name))
    assert len(stand_in) == len(choose(share, name))
    assert len(stand_in) == min(num_selected(share, 9), len(selectable(ROWS)))


def test_scores_cost_the_question_or_one_layer_of_the_context() -> None:
    costs: dict[Select, int] = {"query": 2, "query-context": 2, "mixed": 2, "deviation": 1 + 3}
    for name, expected in costs.items():
        by_score = ByScore.of(ROWS, Recompute(0.5, name))
        assert by_score is not None and by_score.num_computed(ROWS, num_layers=4) == expected
