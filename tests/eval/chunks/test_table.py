# SPDX-License-Identifier: Apache-2.0
"""The table of models as they come: every method has a name of its own, and docs show no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from depcache.errors import ConfigError
from eval.__main__ import main
from eval.chunks.table import name_of, read_tables

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "eval/results"
SHOWN = ["chunks_rows_base.json", "chunks_rows_core.json"]


@pytest.mark.parametrize("name", [*SHOWN, "chunks_rows.json"])
def test_every_method_has_a_name_of_its_own(name: str) -> None:
    rows = json.loads((RESULTS / name).read_text())["untrained_trees"]
    keys = {(row["form"], row["method"], row["placement"], row["recompute"]) for row in rows}
    assert len({name_of(row) for row in rows}) == len(keys)
    for table in read_tables(RESULTS / name).values():
        assert table.count("\n") == 2 + len(keys)
        assert {line.count("|") for line in table.splitlines()} == {table.split("\n")[0].count("|")}


@pytest.mark.parametrize("name", [*SHOWN, "chunks_methods.json", "chunks_made_up.json"])
def test_the_docs_show_the_tables_of_the_reports_they_name(name: str) -> None:
    page = (ROOT / "docs/as-they-come.md").read_text()
    assert name in page
    for table in read_tables(RESULTS / name).values():
        assert table in page


def test_a_file_that_is_no_report_is_named(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    for text in ("{}", "[", "[1]"):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"other\.json is no report"):
            read_tables(file)


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chunks", "--show", str(RESULTS / "chunks_rows_base.json")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("base\n\n| | demo | 1 hop |")
    assert "| paths, first 5 %, `sequential` | 57.5 | 89.6 |" in printed
