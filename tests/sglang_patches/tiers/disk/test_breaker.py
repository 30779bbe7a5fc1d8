# SPDX-License-Identifier: Apache-2.0
"""A storage that keeps failing is left alone for a while, then tried again."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_patches.tiers.disk.breaker import Breaker
from tests.sglang_patches.tiers.disk.make import Clock

pytestmark = pytest.mark.sglang

THRESHOLD, OFF_S = 3, 30.0


def make() -> tuple[Breaker, Clock]:
    clock = Clock()
    return Breaker("disk", THRESHOLD, OFF_S, clock), clock


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        breaker.fail("it hangs")


def test_only_failures_in_a_row_switch_it_off() -> None:
    breaker, _ = make()
    fail(breaker, THRESHOLD - 1)
    breaker.succeed()
    fail(breaker, THRESHOLD - 1)
    assert not breaker.is_off
    fail(breaker, 1)
    assert breaker.is_off
    assert breaker.num_off == 1


def test_it_is_tried_again_after_a_while_and_one_failure_switches_it_off_again() -> None:
    breaker, clock = make()
    fail(breaker, THRESHOLD)
    clock.now = OFF_S - 0.1
    assert breaker.is_off
    clock.now = OFF_S
    assert not breaker.is_off
    fail(breaker, 1)
    assert breaker.is_off
    assert breaker.num_off == 2


def test_one_success_closes_the_matter() -> None:
    breaker, clock = make()
    fail(breaker, THRESHOLD)
    clock.now = OFF_S
    breaker.succeed()
    fail(breaker, THRESHOLD - 1)
    assert not breaker.is_off


def test_answers_to_what_was_asked_before_do_not_prolong_it() -> None:
    breaker, clock = make()
    fail(breaker, THRESHOLD)
    clock.now = OFF_S / 2
    fail(breaker, 5)
    assert breaker.num_off == 1
    clock.now = OFF_S
    assert not breaker.is_off


def test_the_log_says_it_once_with_the_reason_and_when_it_works_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    breaker, clock = make()
    with caplog.at_level(logging.INFO, logger="depcache"):
        for _ in range(4):
            fail(breaker, THRESHOLD)
            clock.now += OFF_S
        breaker.succeed()
    warned, well = [record.getMessage() for record in caplog.records]
    assert "3 failures in a row, the last: it hangs; not used for 30 s" in warned
    assert well == "disk: works again"


@given(st.lists(st.sampled_from(["fail", "succeed", "wait"]), max_size=60))
def test_it_is_off_exactly_while_the_last_switch_says_so(events: list[str]) -> None:
    breaker, clock = make()
    in_a_row, until = 0, 0.0
    for event in events:
        if event == "wait":
            clock.now += OFF_S / 4
        elif event == "succeed":
            breaker.succeed()
            in_a_row, until = 0, 0.0
        else:
            breaker.fail("no")
            in_a_row += 1
            if in_a_row >= THRESHOLD and clock.now >= until:
                until = clock.now + OFF_S
        assert breaker.is_off == (clock.now < until)
