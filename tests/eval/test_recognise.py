# SPDX-License-Identifier: Apache-2.0
"""The report of `python -m eval recognise` on two prompts, and its figures by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.recognise.frameworks import measure_folder

SYSTEM = {"role": "system", "content": "x " * 49 + "x"}


def body(*rows: str, question: str = "Who?") -> dict[str, object]:
    text = "Read:\n" + "".join(f"{row}\n" for row in rows) + f"\n{question}"
    return {"body": {"messages": [SYSTEM, {"role": "user", "content": text}]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    a, b, c = "a -> b -> c", "d -> e -> f", "g -> h -> i"
    requests = [body(a, b), body(c, a, b)]
    data = {"version": "1.0", "requests": requests}
    (tmp_path / "llamaindex_pg_own.json").write_text(json.dumps(data))
    plain = {"requests": [body("None."), body("None.")]}
    (tmp_path / "other.json").write_text(json.dumps(plain))
    return tmp_path


def test_rows_are_counted_and_what_is_reused(folder: Path) -> None:
    row, other = measure_folder(folder)
    # 50 of the system, "\nRead", ":", 9 of each row with the "\n" before it, "\n", "\nWho", "?".
    assert (row["rows"], row["recognised"], row["tokens"]) == (3, 3, 50 + 2 + 3 * 9 + 3)
    assert row["prefix_percent"] == round(100 * 52 / 82, 1)
    # Two rows, each with the "\n" behind it.
    assert row["rows_percent"] == round(100 * (52 + 2 * 10) / 82, 1)
    assert row["same_text_before"] is True and row["version"] == "1.0"
    assert (other["rows"], other["recognised"]) == (0, 0)
    assert other["same_text_before"] is None and other["reason"] == "no rows of facts"
    assert other["rows_percent"] == other["prefix_percent"] == 100.0


def test_the_report_says_nothing_of_the_prompts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = folder / "report"
    assert main(["recognise", "--quick", "--prompts", str(folder), "--json", str(report)]) == 0
    text = report.read_text()
    data = json.loads(text)
    assert data["manifest"]["command"] == (
        "python -m eval recognise --quick --prompts DIR --json PATH"
    )
    assert data["ordinary"]["prompts"] == 50 and data["ordinary"]["wrong"] == 0
    assert str(folder) not in text and "Read" not in text
    assert "3/3" in capsys.readouterr().out


def test_a_folder_without_prompts_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recognise", "--prompts", str(tmp_path)]) == 2
    (tmp_path / "odd.json").write_text("[]")
    assert main(["recognise", "--prompts", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "holds no prompts" in err and "is no recorded prompt" in err
