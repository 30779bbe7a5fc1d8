# SPDX-License-Identifier: Apache-2.0
"""Refusals are counted by reason, streams by time, requests while they are under way."""

from __future__ import annotations

from pathlib import Path

from eval.soak.ledger import Ledger, reason_of


def test_refusals_that_differ_in_values_only_are_one() -> None:
    first = reason_of('{"error": {"message": "segment 17 starts with token 4: merge them"}}')
    assert first == reason_of('{"message": "segment 3 starts with token 99: merge them"}')
    assert reason_of("no JSON at all") == "no JSON at all"


def test_the_p99_is_of_the_streams_of_that_time(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "faults.jsonl")
    ledger.ttft_ms = [(float(i), float(i)) for i in range(200)]
    assert ledger.p99_ttft_ms(0, 101) == 99.0
    assert ledger.p99_ttft_ms(500, 600) is None


def test_a_request_is_a_suspect_only_while_it_is_under_way(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "faults.jsonl")
    with ledger.under_way({"route": "/a"}), ledger.under_way({"route": "/b"}):
        assert [one["route"] for one in ledger.suspects()] == ["/b", "/a"]
    assert ledger.suspects() == []
