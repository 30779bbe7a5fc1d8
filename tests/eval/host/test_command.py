# SPDX-License-Identifier: Apache-2.0
"""Real servers are measured, and what cannot be is said before one starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.host.measure import IDS, STOCK, TEXT
from eval.host.servers import FRONT, SCHEDULER


@pytest.mark.sglang
def test_a_model_without_a_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host", "--model", "no/such/model"]) == 2
    assert "no folder of a model" in capsys.readouterr().err


@pytest.mark.sglang
def test_both_systems_are_measured_stage_by_stage(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "host.json"
    arguments = ["host", "--quick", "--model", str(model_path("llama_gqa")), "--json", str(out)]
    arguments += ["--entities", "3", "--paths", "6", "--prompts", "2", "--pool-tokens", "20000"]
    assert main([*arguments, "--rounds", "2", "--no-questions"]) == 0
    report = json.loads(out.read_text())
    for form in (TEXT, IDS, STOCK):
        assert 0 < report[form]["computed_tokens"] < report[form]["prompt_tokens"]
        assert report[form]["front_ms"] > 0 and report[form]["scheduler_ms"] > 0
        assert set(report[form]["by_stage"]) == {FRONT, SCHEDULER, "detokenizer"}
        assert "model forward" in report[form]["by_stage"][SCHEDULER]
        assert report["wire_bytes"][form] > 100 and report["ttft_ms"][form]["median"] > 0
    assert set(report["ratio"]) == {TEXT, IDS}
    assert report["workloads"]["entities"]["prompts"] == 2
