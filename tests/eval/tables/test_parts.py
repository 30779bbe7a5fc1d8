# SPDX-License-Identifier: Apache-2.0
"""The quick parts: each takes its command, and one file has the rows of all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from depcache.errors import ServerError
from eval.__main__ import main
from eval.tables.parts import make_commands, run_parts
from tests.eval.tables.made import write_set


def test_every_part_takes_its_command(tmp_path: Path) -> None:
    commands = make_commands(tmp_path, "30m", tmp_path, tmp_path)
    assert [file.stem for file in commands] == ["serve", "policy", "ahead", "answers"]
    for words in commands.values():
        # An argument that nobody knows ends it before anything starts; it must be the only one.
        command = [sys.executable, "-m", "eval", *words, "--nonsense"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.endswith("unrecognized arguments: --nonsense\n")


def test_a_part_that_fails_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="`python -m eval tables` ended with code 2"):
        run_parts({tmp_path / "ahead.json": ["tables", "--ahead"]})


@pytest.mark.sglang
@pytest.mark.slow
def test_all_quick_parts_are_in_one_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("spider", "bird"):
        write_set(tmp_path, name)
    file = tmp_path / "report.json"
    words = ["tables", "--quick", "--data", str(tmp_path), "--model", "depcache-tiny"]
    assert main([*words, "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert all(report[name] for name in ("tokens", "ttft", "ratios", "rerank", "ahead"))
    assert any("served" in row for row in report["tokens"])
    assert report["quality"] == []
