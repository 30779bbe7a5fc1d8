# SPDX-License-Identifier: Apache-2.0
"""Growth is a slope behind the warm-up, with its error."""

from __future__ import annotations

import random

import pytest

from eval.soak.server import Usage
from eval.soak.watch import Reading, fit_slope, summarize


def test_a_slope_is_that_of_the_line() -> None:
    hours = [i / 100 for i in range(50)]
    assert fit_slope(hours, [7 + 20 * h for h in hours]) == (
        pytest.approx(20),
        pytest.approx(0, abs=1e-9),
    )
    noise = random.Random(1)
    slope, error = fit_slope(hours, [20 * h + noise.gauss(0, 1) for h in hours])
    assert abs(slope - 20) < 4 * error
    assert fit_slope([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) == (0.0, 0.0)


def test_growth_begins_behind_the_warm_up_and_forgets_what_is_open_for_a_while() -> None:
    def sample(i: int) -> Reading:
        warm_up = 50.0 * max(0, 90 - i)
        rss = {"scheduler": 500.0, "http": 1000 - warm_up + i * 0.01}
        return Reading(float(i), 1, Usage(rss, 40 + (i % 7), 12 + (i > 180)))

    found = summarize([sample(i) for i in range(200)])
    assert found["rss_growth_mb_per_hour"] == pytest.approx(36)  # 0.01 MB a second
    assert found["rss_growth_mb_per_hour_of"] == {"scheduler": 0, "http": pytest.approx(36)}
    assert (found["fd_growth"], found["threads_growth"]) == (0, 1)
    assert summarize([])["rss_growth_mb_per_hour"] is None
