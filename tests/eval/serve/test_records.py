# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of a summary, on numbers that can be checked by hand."""

from __future__ import annotations

import pytest

from eval.serve.records import Record, summarize


def make(ttft_s: float | None = 1.0, *, error: str = "", **values: object) -> Record:
    record = Record("r", "s", "w", "warm", 0, 0, ttft_s=ttft_s, error=error)
    for name, value in values.items():
        setattr(record, name, value)
    return record


def test_percentiles_means_and_rates() -> None:
    records = [
        make(i / 100, e2e_s=i / 100 + 0.3, output_tokens=4, itl_s=[0.1, 0.1, 0.1], prompt_tokens=50)
        for i in range(1, 101)
    ]
    found = summarize(records, 20.0, ttft_limit_s=0.25)
    assert found["median_ttft_ms"] == pytest.approx(505)
    assert found["mean_ttft_ms"] == pytest.approx(505)
    assert found["p90_ttft_ms"] == pytest.approx(901)
    assert found["p99_ttft_ms"] == pytest.approx(990.1)
    assert found["median_itl_ms"] == pytest.approx(100)
    assert found["median_tpot_ms"] == pytest.approx(100)
    assert found["median_e2e_latency_ms"] == pytest.approx(805)
    assert (found["completed"], found["failed"]) == (100, 0)
    assert found["request_throughput"] == 5
    assert found["request_goodput"] == pytest.approx(25 / 20)
    assert found["output_throughput"] == 20
    assert found["total_throughput"] == (5000 + 400) / 20


def test_hit_rate_is_of_tokens() -> None:
    records = [
        make(prompt_tokens=100, cached_tokens=90, report={"shared": 90, "missed": 6, "plain": 4}),
        make(prompt_tokens=300, cached_tokens=10, report={"shared": 10, "missed": 290}),
    ]
    found = summarize(records, 1.0)
    assert found["hit_rate"] == 0.25
    assert found["computed_tokens"] == 300
    assert (found["shared"], found["missed"], found["plain"]) == (100, 296, 4)
    assert "request_goodput" not in found


def test_what_a_settle_pass_computed_counts_as_computed() -> None:
    report = {"shifted": 80, "recomputed": 12, "settled": 30, "plain": 8}
    found = summarize([make(prompt_tokens=100, cached_tokens=80, report=report)], 1.0)
    assert found["computed_tokens"] == 50
    assert (found["recomputed"], found["settled"], found["hit_rate"]) == (12, 30, 0.8)


def test_what_failed_counts_as_failed_and_in_no_time() -> None:
    records = [
        make(1.0, prompt_tokens=10, cached_tokens=5, e2e_s=2.0),
        make(99.0, error="it broke", prompt_tokens=1000, e2e_s=99.0),
        make(None, prompt_tokens=1000),
    ]
    found = summarize(records, 4.0, ttft_limit_s=100.0)
    assert (found["completed"], found["failed"]) == (1, 2)
    assert found["p99_ttft_ms"] == found["median_ttft_ms"] == 1000
    assert found["hit_rate"] == 0.5
    assert found["request_throughput"] == found["request_goodput"] == 0.25


def test_nothing_completed_gives_no_times() -> None:
    found = summarize([make(error="it broke")], 1.0)
    assert found["failed"] == 1 and found["hit_rate"] == 0
    assert not any(name.endswith("_ms") for name in found)
