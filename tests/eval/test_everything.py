# SPDX-License-Identifier: Apache-2.0
"""`python -m eval all`: what fails ends itself only, and is in the exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from eval import everything
from eval.__main__ import main


@pytest.mark.sglang
def test_what_fails_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(everything, "PARTS", ("policy", "attention"))
    arguments = ["all", "--quick", "--data", str(tmp_path / "nowhere"), "--out", str(tmp_path)]
    assert main(arguments) == 2
    assert "policy ended with code 2" in capsys.readouterr().err
    assert not (tmp_path / "policy.json").exists()
    report = json.loads((tmp_path / "attention.json").read_text())
    assert report["rows"] and report["command"] == "python -m eval attention --json PATH --quick"


def test_a_part_that_was_killed_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    monkeypatch.setattr(everything, "PARTS", ("serve",))
    monkeypatch.setattr(everything, "make_command", lambda part, args: killed)
    assert main(["all", "--out", str(tmp_path)]) == 9


@pytest.mark.parametrize("part", everything.PARTS)
def test_every_part_takes_its_command(part: str, tmp_path: Path) -> None:
    args = SimpleNamespace(quick=True, data=tmp_path, vllm=tmp_path / "python", out=tmp_path)
    command = everything.make_command(part, args)
    # An argument that nobody knows ends it before anything starts; it must be the only one.
    done = subprocess.run([*command, "--nonsense"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.endswith("unrecognized arguments: --nonsense\n")
