# SPDX-License-Identifier: Apache-2.0
"""A user is held up by what takes longer than usual for that user."""

from __future__ import annotations

import pytest

from eval.soak.probe import Gap, Probe, hold_ups, usual_ms
from tests.helpers.ends import SLOWEST_S


def test_a_hold_up_is_what_is_longer_than_usual_for_that_user() -> None:
    quiet = [Gap("fast", i, i + 0.01) for i in range(9)] + [
        Gap("slow", i, i + 0.5) for i in range(9)
    ]
    usual = usual_ms(quiet)
    assert usual == {"fast": pytest.approx(10), "slow": pytest.approx(500)}
    gaps = [Gap("slow", 20.0, 20.6), Gap("fast", 20.1, 20.4), Gap("fast", 30.0, 39.0)]
    held_up = hold_ups(gaps, usual, 20.2, 21.0)
    assert held_up == {"fast": pytest.approx(290), "slow": pytest.approx(100)}
    assert hold_ups(gaps, usual, 22.0, 23.0) == {"fast": 0.0, "slow": 0.0}


def test_nobody_is_held_up_before_all_others_are_answered() -> None:
    probe = Probe("http://127.0.0.1:9")  # its process is not started
    users = ["a plain question", "a question about facts", "a look at the models"]
    for user in users:
        probe._queue.put(Gap(user, 2.0, 2.1))
    probe._queue.put(Gap("a stream", 0.5, 1.5))
    assert not probe.wait_for_users(1.0, 0.5)
    probe._queue.put(Gap("a stream", 1.5, 1.6))
    assert probe.wait_for_users(1.0, SLOWEST_S)
