# SPDX-License-Identifier: Apache-2.0
"""The guard raises the share where answers differ, ends fusing, and goes back."""

from __future__ import annotations

import random

import pytest

from depcache.select.guard import LAST_STEP, MIN_JUDGED, QualityGuard


def steps(asked: float) -> list[float | None]:
    guard = QualityGuard(0.9)
    found: list[float | None] = []
    for guard.step in range(LAST_STEP + 1):
        found.append(guard.share(asked))
    return found


@pytest.mark.parametrize(
    ("asked", "shares"),
    [
        (0.0, [0.0, 0.15, 0.3, 0.5, None]),
        (0.15, [0.15, 0.3, 0.5, None, None]),
        (0.4, [0.4, 0.5, None, None, None]),
        (0.8, [0.8, None, None, None, None]),
    ],
)
def test_each_step_doubles_the_share_and_then_ends_it(
    asked: float, shares: list[float | None]
) -> None:
    assert steps(asked) == shares


def test_answers_that_differ_end_fusing_within_twenty_judged_ones() -> None:
    guard = QualityGuard(0.9)
    draw = random.Random(0)
    for _ in range(20):
        guard.note(draw.choice([0.0, 0.25, 0.5, 1.0]))
    assert guard.step == LAST_STEP and guard.share(0.01) is None


def test_answers_that_agree_change_nothing() -> None:
    guard = QualityGuard(0.9)
    assert not any(guard.note(1.0) for _ in range(500))
    assert guard.step == 0 and guard.agreement == 1.0


def test_a_few_bad_answers_among_good_ones_change_nothing() -> None:
    guard = QualityGuard(0.9)
    draw = random.Random(1)
    assert not any(guard.note(0.5 if draw.random() < 0.05 else 1.0) for _ in range(1000))


def test_nothing_is_decided_by_too_few() -> None:
    guard = QualityGuard(0.9)
    assert not any(guard.note(0.0) for _ in range(MIN_JUDGED - 1))
    assert guard.note(0.0) and guard.step == 1 and guard.agreement is None


def test_it_goes_back_after_a_window_that_agrees_well() -> None:
    guard = QualityGuard(0.9, window=10)
    guard.step = 2
    assert [guard.note(0.97) for _ in range(10)] == [False] * 9 + [True]
    assert guard.step == 1
    assert not any(guard.note(0.93) for _ in range(50))  # good enough to stay, not to go back


def test_it_tries_again_after_a_window_of_flat_answers() -> None:
    guard = QualityGuard(0.9, window=10)
    guard.step = LAST_STEP
    assert [guard.pass_over() for _ in range(10)] == [False] * 9 + [True]
    assert guard.step == LAST_STEP - 1
