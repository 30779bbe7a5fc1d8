# SPDX-License-Identifier: Apache-2.0
"""The bar is missed by faults, leaks, growth, stalls and a cold restart, and held without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eval.soak.ledger import Ledger
from eval.soak.report import RSS_MB_PER_HOUR, find_missed, to_text
from eval.soak.stalls import LIMIT_MS, Stall
from tests.eval.soak.made import report_of


def test_a_good_run_holds_the_bar_and_has_the_figures_that_were_promised(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    assert report["missed"] == []
    assert to_text(report).endswith("the bar is held")
    assert list(report)[:11] == [
        *("minutes", "requests", "judged", "wrong", "http_5xx", "leaked_tokens"),
        *("rss_growth_mb_per_hour", "fd_growth", "kills_survived", "restart_hits", "max_stall_ms"),
    ]
    assert (report["kills_survived"], report["max_stall_ms"]) == (1, 30.0)
    json.dumps(report)


@pytest.mark.parametrize("kind", ["wrong", "5xx", "died", "no answer", "refused", "held at rest"])
def test_a_fault_misses_the_bar_and_leaves_its_request(tmp_path: Path, kind: str) -> None:
    ledger = Ledger(tmp_path / "faults.jsonl", phase="storm")
    ledger.fault(kind, "what happened", {"body": "x" * 10_000})
    report = report_of(tmp_path, ledger)
    assert len(report["missed"]) == 1
    assert len(json.dumps(report["faults"])) < 5000
    written = json.loads((tmp_path / "faults.jsonl").read_text())
    assert written["request"] == {"body": "x" * 10_000}
    assert written["phase"] == "storm"


def test_leaks_growth_stalls_and_a_cold_restart_miss_the_bar(tmp_path: Path) -> None:
    growth = {"rss_growth_mb_per_hour": RSS_MB_PER_HOUR + 1, "seconds_watched": 600.0}
    stall = Stall("the whole tree", 200, 2.0, {"a stream": LIMIT_MS + 100}, {}, 3)
    kills = [{"how": "SIGTERM", "loaded_after": 0}]
    report = report_of(tmp_path, leaked=3, growth=growth, stalls=[stall], kills=kills)
    assert len(report["missed"]) == 4
    assert any("'the whole tree' held up a stream" in line for line in report["missed"])
    unsure = growth | {"rss_growth_mb_per_hour_error": 5.0}
    assert report_of(tmp_path, growth=unsure)["missed"] == []
    # A slope over seconds says nothing, and what was not measured is not missed.
    short = report_of(tmp_path, growth=growth | {"seconds_watched": 20.0}, stalls=[], kills=[])
    assert short["missed"] == [] and short["max_stall_ms"] is None
    assert find_missed(short) == []
