# SPDX-License-Identifier: Apache-2.0
"""Finished reports in one file: every key that is asked for, and what is no report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.__main__ import main
from eval.tables.joined import join_reports
from tests.eval.tables.made import write_set

RESULTS = Path(__file__).parents[3] / "eval" / "results"
STORED = ("serve_tables", "policy_tables", "tables_answers", "tables_ahead")
FILES = [RESULTS / f"{name}.json" for name in STORED]


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def test_one_file_has_the_rows_of_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("spider", "bird"):
        write_set(tmp_path, name)
    file = tmp_path / "report.json"
    words = ["tables", "--quick", "--tokens", "--data", str(tmp_path), "--json", str(file)]
    assert main([*words, "--join", *map(str, FILES)]) == 0
    report = json.loads(file.read_text())
    assert report["tokens"][0].keys() >= {"set", "system", "computed", "context"}
    assert len(report["ttft"]) == len(read("serve_tables")["rows"])
    for row in report["ttft"]:
        assert row.keys() == {"set", "system", "phase", "ms_median", "ms_range", "rounds"}
        assert row["ms_range"][0] <= row["ms_median"] <= row["ms_range"][1]
    [(name, ratios)] = report["ratios"].items()
    assert name == "lake:sql:12" and ratios["ttft_warm_vs_sglang_declared"] > 1
    assert None not in ratios.values()
    assert report["quality"] == read("tables_answers")["quality"]
    asked = {"mode", "set", "em", "executes", "low", "high"}
    assert all(asked <= row.keys() for row in report["quality"])
    kept = ("set", "policy", "scheduler", "capacity_share", "loaded")
    assert all(tuple(row) == kept for row in report["rerank"])
    [lru] = [
        row["loaded"]
        for row in report["rerank"]
        if tuple(row.values())[:4] == ("whole:bird", "lru", "xor", 0.345)
    ]
    assert 0 < lru < 0.1
    assert report["ahead"] == read("tables_ahead")["ahead"]
    assert [each["date"] for each in report["reports"]] == [
        about["date"] for about in (read(name).get("manifest", read(name)) for name in STORED)
    ]
    # These are other schemas than those that the servers were asked about.
    [note] = report["notes"]
    assert "the data gives" in note and note in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", '{"rows": []}', "no JSON"])
def test_what_is_no_report_is_said(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)
    assert main(["tables", "--data", str(tmp_path), "--join", str(file)]) == 2


def test_two_reports_of_one_kind_are_both_there() -> None:
    files = [RESULTS / f"{name}.json" for name in ("tables_answers", "tables_answers_sets")]
    found = join_reports(files, Path("nowhere"))
    assert {row["set"] for row in found["quality"]} > {"made_up", "spider"}
    assert found["ttft"] == [] and found["ratios"] == {}
