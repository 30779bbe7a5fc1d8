# SPDX-License-Identifier: Apache-2.0
"""Selectors by shape: budgets, what another view would change, and whose tokens come first."""

from __future__ import annotations

import numpy as np
import pytest

from depcache.errors import PromptError
from depcache.prompt.forest import Forest
from depcache.prompt.recompute import Recompute, Select
from depcache.select import num_selected, select, selectable

# system 0-1 | row 2-4 | row 5-8 | row 9-10 | task 11
ROWS = Forest.make(12, 2, [3, 4, 2], [-1, -1, -1])


def test_the_first_row_sees_everything_as_it_is() -> None:
    assert selectable(ROWS).tolist() == [5, 6, 7, 8, 9, 10]


def test_a_chain_of_segments_has_nothing_to_select() -> None:
    assert not len(selectable(Forest.make(12, 2, [3, 4, 2], [-1, 0, 1])))


def test_branches_are_selectable_and_their_stem_is_not() -> None:
    forest = Forest.make(12, 2, [3, 2, 3], [-1, 0, 0])
    assert selectable(forest).tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("share", "expected"), [(0, []), (0.1, [5]), (0.25, [5, 9]), (0.5, [5, 6, 9, 10])]
)
def test_first_deals_the_budget_over_the_rows(share: float, expected: list[int]) -> None:
    assert select(ROWS, Recompute(share)).tolist() == expected


def test_all_of_it_is_what_another_view_would_change() -> None:
    for name in ("first", "random"):
        chosen = select(ROWS, Recompute(1.0, name))
        assert chosen.tolist() == selectable(ROWS).tolist()


def test_random_is_the_same_for_a_seed_and_another_for_another() -> None:
    forest = Forest.make(402, 1, [100] * 4, [-1] * 4)
    chosen = [select(forest, Recompute(0.1, "random", seed=seed)) for seed in (1, 1, 2)]
    assert chosen[0].tolist() == chosen[1].tolist() != chosen[2].tolist()
    assert len(chosen[0]) == 40 and (np.diff(chosen[0]) > 0).all()


@pytest.mark.parametrize(
    ("share", "num_tokens", "expected"), [(0, 9, 0), (0.01, 9, 1), (0.15, 20, 3), (1, 9, 9)]
)
def test_a_budget_is_the_share_of_the_context(share: float, num_tokens: int, expected: int) -> None:
    assert num_selected(share, num_tokens) == expected


@pytest.mark.parametrize(
    ("share", "expected"), [(0, []), (0.1, [5, 9]), (0.5, [5, 6, 9]), (0.8, [5, 6, 7, 9, 10])]
)
def test_a_budget_of_each_row_is_its_share(share: float, expected: list[int]) -> None:
    assert select(ROWS, Recompute(share, budget="chunk")).tolist() == expected


@pytest.mark.parametrize("name", ["first", "random"])
def test_what_a_row_gets_of_a_budget_of_its_own_depends_on_no_row_behind_it(name: Select) -> None:
    lens = [7, 30, 21]
    chosen: list[list[int]] = []
    for last in (10, 90):
        forest = Forest.make(60 + last, 1, [*lens, last], [-1] * 4)
        selected = select(forest, Recompute(0.3, name, seed=3, budget="chunk")).tolist()
        chosen.append([index for index in selected if index < 1 + sum(lens)])
    assert chosen[0] == chosen[1] != []


def test_an_empty_context_has_no_budget() -> None:
    assert num_selected(1.0, 0) == 0


def test_given_indices_are_taken_as_they_are() -> None:
    assert select(ROWS, Recompute(select="given", selected=(2, 10))).tolist() == [2, 10]


@pytest.mark.parametrize(
    ("selected", "why"),
    [
        ((1, 5), "1 is among depcache_selected, but the context of this prompt is [2, 11)"),
        ((5, 11), "11 is among depcache_selected"),
        ((-1,), "-1 is among depcache_selected"),
        ((5, 5), "has 5 behind 5: send ascending indices"),
        ((6, 5), "has 5 behind 6"),
        ((2**70,), "it is no index"),
    ],
)
def test_given_indices_that_do_not_fit_are_refused(selected: tuple[int, ...], why: str) -> None:
    with pytest.raises(PromptError) as error:
        select(ROWS, Recompute(select="given", selected=selected))
    assert why in str(error.value)
