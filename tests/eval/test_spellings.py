# SPDX-License-Identifier: Apache-2.0
"""Facts in other places and spellings, asked of the real server of depcache-tiny."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.spellings import SPELLINGS

pytestmark = pytest.mark.sglang


@pytest.mark.usefixtures("forked_servers")
def test_every_spelling_but_sentences_is_found_in_every_message(tmp_path: Path) -> None:
    pytest.importorskip("rouge_score")
    file = tmp_path / "report.json"
    assert main(["spellings", "--quick", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    rows = {row["spelling"]: row for row in report["rows"]}
    assert list(rows) == list(SPELLINGS) and report["questions"] == 10
    for name, row in rows.items():
        assert row["recognised"] == (0.0 if "sentences" in name else 100.0)
    # 90 of 100 as in training, merged; rows that stand whole cost some of it.
    assert rows["user message, as `render` writes it"]["right"] >= 60
    assert rows["system message, `render`'s words before"]["right"] >= 60
