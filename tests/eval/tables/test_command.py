# SPDX-License-Identifier: Apache-2.0
"""`python -m eval tables`: what a report holds, and what it needs."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.tables.agents import FORMS as AGENT_FORMS
from eval.tables.simulate import FORMS, SYSTEMS
from eval.tables.wide import WORKLOADS
from tests.eval.tables.made import write_set


def test_a_report_has_the_tokens_of_every_workload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("spider", "bird"):
        write_set(tmp_path, name)
    file = tmp_path / "report.json"
    words = ["tables", "--quick", "--tokens", "--data", str(tmp_path), "--json", str(file)]
    assert main(words) == 0
    report = json.loads(file.read_text())
    sets = {row["set"]: row for row in report["sets"]}
    assert list(sets) == list(FORMS)
    rows = report["tokens"]
    assert [(row["set"], row["system"]) for row in rows] == list(product(FORMS, SYSTEMS))
    for row in rows:
        assert set(row) == {"set", "system", "computed", "context", "prefill"}
        task = sets[row["set"]]["task"]
        assert row["prefill"] == pytest.approx(row["computed"] + task, abs=1)
        assert row["context"] == pytest.approx(sets[row["set"]]["context"], abs=0.1)
        assert 0 <= row["computed"] <= row["context"] + 0.1
    # What nobody measured is empty, not missing.
    assert report["ttft"] == report["quality"] == report["rerank"] == []
    assert report["ratios"] == {}
    agents = json.loads(file.read_text())["agents"]
    assert [row["set"] for row in agents] == list(AGENT_FORMS)
    for row in agents:
        assert all(row["tables_first"][name] > row["instructions"] for name in SYSTEMS)
    wide = json.loads(file.read_text())["wide"]
    assert [row["set"] for row in wide if row["wide"]] == list(WORKLOADS)
    told = capsys.readouterr().err
    assert "lake:sql:12, tables_first" in told and "lake:sql:12, wide" in told


def test_without_data_it_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables"]) == 2
    assert "--data" in capsys.readouterr().err


@pytest.mark.sglang
def test_tables_that_were_computed_ahead_are_found_after_a_restart_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_set(tmp_path, "bird")
    file = tmp_path / "report.json"
    asked = ["tables", "--ahead", "--model", "depcache-tiny"]
    assert main([*asked, "--data", str(tmp_path), "--json", str(file)]) == 0
    found = json.loads(file.read_text())["ahead"]
    assert found["ahead"]["computed"] > 0 and found["ahead"]["failures"] == 0
    assert found["asked"]["missed"] == found["restarted"]["missed"] == 0
    assert found["asked"]["loaded"] == 0 < found["restarted"]["loaded"]
    assert found["asked"]["context"] == found["restarted"]["context"]
    assert "tables ahead in" in capsys.readouterr().err
