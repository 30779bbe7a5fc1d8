# SPDX-License-Identifier: Apache-2.0
"""`python -m eval conversation` on real servers: what is cached behind the facts is seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.conversation import SYSTEMS, Turn, make_figures


def test_figures_are_medians_and_say_when_rounds_differ() -> None:
    rounds = [[Turn(10, 10, ms), Turn(20, 5, 2 * ms)] for ms in (1.0, 9.0, 3.0)]
    assert make_figures(rounds) == {
        "prompt_tokens": [10, 20],
        "computed_tokens": [10, 5],
        "ttft_ms": [3.0, 6.0],
        "computed_in_all": 15,
        "is_stable": True,
    }
    assert not make_figures([*rounds, [Turn(10, 10, 1.0), Turn(20, 6, 1.0)]])["is_stable"]


@pytest.mark.sglang
def test_one_turn_is_no_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conversation", "--turns", "1"]) == 2
    assert "at least 2" in capsys.readouterr().err


@pytest.mark.sglang
def test_later_turns_compute_less_where_tails_are_cached(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    arguments = ["conversation", "--quick", "--turns", "3", "--pool-tokens", "8000"]
    arguments += ["--model", str(model_path("llama_gqa")), "--json", str(out)]
    assert main(arguments) == 0
    report = json.loads(out.read_text())
    systems = report["systems"]
    assert list(systems) == list(SYSTEMS)
    without, cached = (systems[name]["computed_tokens"] for name in SYSTEMS[:2])
    assert without[0] == cached[0]
    assert cached[1] < without[1] and cached[2] < without[2]
    for told in systems.values():
        pairs = zip(told["computed_tokens"], told["prompt_tokens"], strict=True)
        assert all(0 < computed <= of for computed, of in pairs)
        assert min(told["ttft_ms"]) > 0
