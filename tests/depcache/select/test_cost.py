# SPDX-License-Identifier: Apache-2.0
"""The choice between fusing and the flat prompt, and the forecast that it uses."""

from __future__ import annotations

from typing import Any

import pytest

from depcache.select.cost import FIRST_TIME, Choice, Met, ReuseForecast, choose


def choice(
    missing: list[int],
    was_met: list[bool] | None = None,
    forecast: float = 0.0,
    repeats: float = 0.0,
    **changed: Any,
) -> Choice:
    """Four rows of 100 tokens behind a system of 20; of the context 15 % would be recomputed."""
    given: dict[str, Any] = {
        "num_selected": 60,
        "num_context": 420,
        "num_missing_system": 0,
        "num_prefix": 20,
        "num_task": 30,
        "share": 0.15,
        "is_pinned": False,
    }
    was_met = [not num for num in missing] if was_met is None else was_met
    met = Met(tuple(was_met), forecast, repeats)
    return choose(missing=missing, met=met, **{**given, **changed})


def test_cached_rows_are_fused() -> None:
    assert choice([0, 0, 0, 0]) == Choice(True, ())


def test_a_prompt_that_is_a_cached_prefix_is_answered_as_it_is() -> None:
    assert choice([0, 0, 0, 0], num_prefix=420) == Choice(False, ())


def test_fresh_rows_are_not_fused_where_none_comes_again() -> None:
    assert choice([100] * 4, forecast=0.1) == Choice(False, ())


def test_fresh_rows_are_settled_where_most_come_again() -> None:
    assert choice([100] * 4, forecast=0.8) == Choice(True, (0, 1, 2, 3))


def test_a_row_met_before_is_settled_and_a_new_one_is_not() -> None:
    assert choice([0, 100, 0, 100], [True, True, True, False]) == Choice(True, (1,))


def test_a_missing_system_is_computed_either_way() -> None:
    # 331 of the rows are left either way: with the system in one sum alone, fusing would win.
    for num_prefix, num_missing_system in ((20, 0), (0, 20)):
        made = choice(
            [85] * 4, num_prefix=num_prefix, num_missing_system=num_missing_system, forecast=0.0
        )
        assert not made.is_fused


def test_a_pinned_request_settles_whatever_is_missing() -> None:
    assert choice([0, 100, 0, 7], num_prefix=420, is_pinned=True) == Choice(True, (1, 3))


def test_a_selector_with_scores_computes_the_task_once_more_and_one_token() -> None:
    # 60 selected and 30 of the task, and 31 with scores; the flat prompt computes 450 - num_prefix.
    for num_prefix, is_fused in ((328, True), (329, False)):
        assert choice([0] * 4, num_prefix=num_prefix, num_scoring=31).is_fused == is_fused
    for num_prefix, is_fused in ((359, True), (360, False)):
        assert choice([0] * 4, num_prefix=num_prefix).is_fused == is_fused


def test_a_selector_with_scores_settles_all_rows_or_none() -> None:
    met = [True, True, True, False]
    assert choice([0, 100, 0, 100], met, num_scoring=31) == Choice(True, (1, 3))
    assert choice([0, 100, 0, 100], met, num_scoring=31, num_prefix=130) == Choice(False, ())
    assert choice([100] * 4, num_scoring=31, is_pinned=True).settled == (0, 1, 2, 3)


@pytest.mark.parametrize("num_prefix", range(20, 421, 20))
def test_it_computes_no_more_than_a_prefix_cache_when_nothing_is_invested(num_prefix: int) -> None:
    for missing in ([0] * 4, [0, 50, 50, 0], [100] * 4):
        made = choice(missing, num_prefix=num_prefix)
        if made.is_fused:
            assert sum(missing) + 60 < 420 - num_prefix


def test_a_context_that_comes_again_and_again_is_answered_as_it_is_once() -> None:
    # 340 tokens more than fusing, which would compute its 60 again each time.
    assert choice([0] * 4, repeats=5).is_fused
    assert not choice([0] * 4, repeats=6).is_fused


def test_a_context_whose_patches_are_kept_may_come_again_as_often_as_it_likes() -> None:
    assert choice([0] * 4, repeats=6, num_patched=0).is_fused
    assert not choice([0] * 4, repeats=6, num_patched=0, num_scoring=31).is_fused
    # 60 selected and 30 of the task; the flat prompt computes 450 - num_prefix.
    assert not choice([0] * 4, num_prefix=360, num_patched=0).is_fused
    assert choice([0] * 4, num_prefix=360, num_patched=1).is_fused
    assert not choice([0] * 4, num_prefix=420, num_patched=60).is_fused  # equal: the exact way


def test_what_is_not_settled_is_computed_again_at_every_repeat() -> None:
    assert choice([0, 0, 0, 100], [True, True, True, False], repeats=1).is_fused
    assert not choice([0, 0, 0, 100], [True, True, True, False], repeats=2).is_fused


def meet(forecast: ReuseForecast, rows: str, cached: str = "") -> Met:
    """A request of rows of one letter each."""
    return forecast.meet([row.encode() for row in rows], [row in cached for row in rows])


def test_the_forecast_is_the_share_of_rows_met_again_in_its_window() -> None:
    forecast = ReuseForecast(window=4)
    assert meet(forecast, "ab") == Met((False, False), 0.0, 0.0)
    assert meet(forecast, "ba") == Met((True, True), 0.5, 0.0)
    assert meet(forecast, "cab").was_met == (False, True, True)
    assert meet(forecast, "d").share == 0.5


def test_rows_of_a_known_beginning_are_no_reuse() -> None:
    forecast = ReuseForecast()
    meet(forecast, "abc")
    assert meet(forecast, "abc") == Met((False, False, False), 0.0, 1.0)
    assert meet(forecast, "acb").was_met == (False, True, True)
    assert meet(forecast, "ab", cached="ab").was_met == (False, False)


def test_a_context_is_expected_as_often_as_it_came_or_a_little_more_than_the_mean() -> None:
    forecast = ReuseForecast()
    assert [meet(forecast, "ab").repeats for _ in range(4)] == [0, 1, 2, 3]
    # 3 of 5 contexts repeated an earlier one: 1.5 times each.
    assert meet(forecast, "x").repeats == pytest.approx(1.5 * FIRST_TIME)
    assert meet(forecast, "x").repeats == 1


def test_a_cached_row_was_met_by_whomever() -> None:
    assert meet(ReuseForecast(), "a", cached="a").was_met == (True,)


def test_the_forecast_forgets_the_rows_that_were_longest_unseen() -> None:
    forecast = ReuseForecast(max_known=3)
    for rows in ("xa", "xb", "xa", "xc"):  # b goes
        meet(forecast, rows)
    assert meet(forecast, "ca").was_met == (True, True)
    assert meet(forecast, "b").was_met == (False,)
