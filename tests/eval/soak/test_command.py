# SPDX-License-Identifier: Apache-2.0
"""`python -m eval soak`: its plan, its exit code, and a storm on a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.__main__ import main
from eval.soak import command
from eval.soak.command import make_plan
from eval.soak.judge import EXACT, TOLERANCE
from eval.soak.phases import ON_MAIN, PHASES, ROUTED
from tests.eval.soak.made import report_of


@pytest.mark.sglang
@pytest.mark.parametrize(("missed", "code"), [([], 0), (["3 wrong answers"], 1)])
def test_the_exit_code_says_whether_the_bar_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missed: list[str], code: int
) -> None:
    report = report_of(tmp_path) | {"missed": missed}

    async def soak(*_: Any) -> dict[str, Any]:
        return report

    monkeypatch.setattr(command, "_soak", soak)
    file = tmp_path / "out.json"
    arguments = ["soak", "--minutes", "1", "--json", str(file), "--out", str(tmp_path / "logs")]
    assert main(arguments) == code
    assert json.loads(file.read_text())["missed"] == missed


@pytest.mark.sglang
def test_no_time_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--minutes", "0"]) == 2
    assert "--minutes is 0" in capsys.readouterr().err


@pytest.mark.sglang
def test_a_router_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--only", "routed"]) == 2
    assert "--smg" in capsys.readouterr().err


def test_a_plan_takes_about_the_minutes_and_the_storm_most_of_them() -> None:
    for minutes in (15, 60):
        assert set(make_plan(minutes)) == set(PHASES) - {ROUTED}
        seconds = make_plan(minutes, has_smg=True)
        assert set(seconds) == set(PHASES)
        assert sum(seconds.values()) <= minutes * 60
        assert seconds["storm"] == max(seconds.values())
    assert make_plan(60)["storm"] > 35 * 60
    assert make_plan(1)["storm"] == pytest.approx(24)  # however little is left
    assert make_plan(5, ["stalls"]).keys() == {"stalls"}
    assert make_plan(5, ["fuzz"])["fuzz"] == pytest.approx(270)  # less what a start takes
    assert set(ON_MAIN) < set(PHASES)


def test_phases_without_the_storm_have_all_of_the_minutes() -> None:
    assert make_plan(15, [ROUTED]) == {ROUTED: pytest.approx(840)}
    assert make_plan(1, [ROUTED]) == {ROUTED: 60}
    seconds = make_plan(30, ["kills", "stalls"])
    assert sum(seconds.values()) == pytest.approx(30 * 60 - 90)
    assert seconds["stalls"] == pytest.approx(2 * seconds["kills"])


@pytest.mark.slow
@pytest.mark.sglang
@pytest.mark.timeout(900)
def test_a_storm_of_half_a_minute_on_a_real_server(tmp_path: Path) -> None:
    file = tmp_path / "soak.json"
    arguments = ["soak", "--minutes", "0.5", "--only", "storm", "--json", str(file)]
    code = main([*arguments, "--out", str(tmp_path / "logs")])
    report = json.loads(file.read_text())
    assert code == 0, (report["missed"], report["faults"][:3])
    assert report["judged"] > 20
    assert report["judged_how"][EXACT] > 5
    assert report["seen"]["rests"] >= 1
    assert report["worst_logprob_error"] < TOLERANCE
    assert (tmp_path / "logs" / "main-1.log").is_file()
