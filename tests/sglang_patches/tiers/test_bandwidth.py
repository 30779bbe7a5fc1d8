# SPDX-License-Identifier: Apache-2.0
"""Load or recompute: the fit finds a line, and the choice follows it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_patches.tiers.bandwidth import STALE_S, Bandwidth, LinearCost
from tests.sglang_patches.tiers.disk.make import Clock

pytestmark = pytest.mark.sglang


@given(
    fixed=st.floats(0, 1),
    slope=st.floats(1e-6, 1),
    sizes=st.lists(st.integers(1, 5000), min_size=3),
)
def test_a_line_without_noise_is_found(fixed, slope, sizes):
    cost = LinearCost(Clock())
    sizes = [*sizes, min(sizes) + 1000]
    for size in sizes:
        cost.observe(size, fixed + slope * size)
    found = cost.fit()
    for size in (1, 100, 5000):
        assert found[0] + found[1] * size == pytest.approx(fixed + slope * size, rel=1e-2, abs=1e-3)


@given(st.lists(st.tuples(st.integers(-5, 10**7), st.floats(-1, 1e4)), max_size=30))
def test_no_noise_makes_a_cost_negative(observations):
    cost = LinearCost(Clock())
    for amount, seconds in observations:
        cost.observe(amount, seconds)
    fixed, slope = cost.fit()
    assert fixed >= 0 and slope >= 0


def test_equal_amounts_are_all_per_unit():
    cost = LinearCost(Clock())
    for _ in range(5):
        cost.observe(8, 0.016)
    assert cost.fit() == (0.0, pytest.approx(0.002))


def test_newer_observations_win():
    cost = LinearCost(Clock())
    rng = np.random.default_rng(0)
    for per_token in (1.0, 0.01):
        for size in rng.integers(1, 500, 400):
            cost.observe(int(size), per_token * size)
    assert cost.fit()[1] == pytest.approx(0.01, rel=0.1)


def make(clock, *, disk_latency=0.01, disk_token=0.001, prefill_token=0.002):
    bandwidth = Bandwidth(1000, clock)
    for size in (1, 10, 100, 1000):
        bandwidth.observe_load("host", size, 1e-5 * size)
        bandwidth.observe_load("disk", size, disk_latency + disk_token * size)
        bandwidth.observe_prefill(size, 0.5 + prefill_token * size)
    return bandwidth


def test_a_short_node_is_recomputed_and_a_long_one_is_loaded():
    bandwidth = make(Clock())
    # Even at 0.01 + 0.00101 n = 0.002 n: about 10 tokens.
    assert not bandwidth.should_load(9, "disk")
    assert bandwidth.should_load(12, "disk")
    assert not bandwidth.should_load(12, "disk", num_nodes=3)
    assert bandwidth.should_load(1, "host")


def test_prefill_whose_cost_a_token_is_hidden_by_noise_is_not_taken_for_free():
    bandwidth = Bandwidth(1000, Clock())
    for num_tokens, seconds in ((10, 0.9), (100, 0.5), (1000, 0.1)):
        bandwidth.observe_prefill(num_tokens, seconds)
    assert bandwidth.prefill_seconds(50) == 0
    assert bandwidth.should_load(50, "host")
    for num_tokens in (1000, 2000, 3000, 4000):
        bandwidth.observe_load("host", num_tokens, 1.0 * num_tokens)
        bandwidth.observe_prefill(num_tokens, 0.1 * num_tokens)
    assert bandwidth.prefill_seconds(50) > 0
    assert not bandwidth.should_load(50, "host")


def test_a_slow_disk_is_never_worth_it():
    bandwidth = make(Clock(), disk_token=0.1)
    assert not any(bandwidth.should_load(n, "disk") for n in (1, 100, 10**6))
    assert bandwidth.should_load(1, "host")


def test_before_any_measurement_everything_is_loaded():
    bandwidth = Bandwidth(1000, Clock())
    assert bandwidth.should_load(1, "host") and bandwidth.should_load(1, "disk")
    bandwidth.observe_load("disk", 1, 1000.0)
    assert bandwidth.should_load(1, "disk"), "one observation is luck"
    for _ in range(9):
        bandwidth.observe_prefill(100, 0.001)
    assert bandwidth.should_load(1, "disk"), "nothing is known about the disk"


def test_a_refused_tier_is_tried_again_after_a_while():
    clock = Clock()
    bandwidth = make(clock, disk_token=0.1)
    assert not bandwidth.should_load(50, "disk")
    clock.now = STALE_S + 1
    for _ in range(5):
        bandwidth.observe_prefill(100, 0.2)
    assert bandwidth.should_load(50, "disk")


def test_the_numbers_are_shown():
    report = make(Clock()).describe()
    assert report["disk"]["latency_ms"] == pytest.approx(10, rel=0.01)
    assert report["disk"]["bytes_per_s"] == pytest.approx(1e6, rel=0.01)
    assert report["prefill"]["tokens_per_s"] == pytest.approx(500, rel=0.01)
    assert report["host"]["observations"] == 4
