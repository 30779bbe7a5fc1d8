# SPDX-License-Identifier: Apache-2.0
"""The worst row of those that a bar is about decides, and a missed bar fails the check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from depcache.errors import ConfigError
from eval.__main__ import main
from eval.chunks.bars import BARS, PARTS, join_reports, judge, serve_rows
from eval.workloads.made_up import MADE_UP


def simulated(stream: str, system: str, to_prefix: float, prompt: float = 2250.0) -> dict[str, Any]:
    """A row of `--tokens`."""
    row = {"set": "nq", "stream": stream, "requests": 2000, "prompt": prompt, "cache": None}
    return row | {"system": system, "share": 0.1, "to_prefix": to_prefix}


def served(workload: str, **computed: int) -> dict[str, Any]:
    """A report of `eval serve`: tokens computed in the phase `warm`, per system."""
    rows = [
        {
            "system": system.replace("_", "-"),
            "workload": workload,
            "phase": "warm",
            "input_tokens": 200_000,
            "computed_tokens": tokens,
            "ttft_ms_p50": tokens / 100,
        }
        for system, tokens in computed.items()
    ]
    counts = {"stream": 200, "warm": 60, "load": 0}
    return {"rows": rows, "manifest": {"settings": {"counts": counts}}}


def write(folder: Path, name: str, report: Any) -> Path:
    file = folder / name
    file.write_text(json.dumps(report))
    return file


def test_the_worst_row_decides() -> None:
    rows = [
        simulated("paraphrased", "served 0.05", 0.41),
        simulated("paraphrased", "served 0.05", 0.55),
        simulated("paraphrased", "served 0.05", 0.7, prompt=700.0),
        simulated("Zipf 0.7", "served 0.15", 1.06),
        simulated("Zipf 0.7", "chunks 0.15", 1.3),
    ]
    bars = judge({"tokens": rows})
    assert bars["paraphrased, 5 %, simulated"]["value"] == 0.55
    assert bars["paraphrased, 5 %, simulated"]["held"] is True
    assert bars["verbatim and fresh, simulated"]["value"] == 1.06
    assert bars["verbatim and fresh, simulated"]["held"] is False
    assert bars["paraphrased, 15 %, simulated"] == {
        "bar": "to_prefix <= 0.8",
        "value": None,
        "held": None,
        "of": None,
    }


def test_of_settings_the_best_decides() -> None:
    row = {"model": "base", "set": "all", "form": "paths", "placement": "sequential"}
    rows = [
        row | {"method": "first", "recompute": 0.05, "lost": 0.01},
        row | {"method": "random", "recompute": 0.15, "lost": 0.1},
        row | {"method": "oracle", "recompute": 0.15, "lost": -0.02},
        row | {"method": "first", "recompute": 0.3, "lost": -0.01},
    ]
    bar = judge({"untrained_trees": rows})["points lost by a model as it comes, best setting"]
    assert (bar["value"], bar["held"]) == (0.01, True)
    assert bar["of"] == "base, all, paths, first, sequential, 0.05"


def test_made_up_worlds_are_judged_beside_the_public_sets() -> None:
    row = {"model": "depcache-tiny", "form": "cut", "placement": "sequential"}
    row |= {"method": "first", "recompute": 0.15}
    bars = judge(
        {"quality": [row | {"set": "all", "gone": 0.7}, row | {"set": MADE_UP, "gone": 0.8}]}
    )
    assert bars["first, 15 %"]["held"] is False
    assert bars["first, 15 %, made-up worlds"] == {
        "bar": "gone >= 0.75",
        "value": 0.8,
        "held": True,
        "of": "depcache-tiny, made_up, cut, first, sequential, 0.15",
    }


def test_what_was_served_stands_beside_sglang() -> None:
    report = served("chunks:musique:zipf-1.0", sglang=100_000, depcache_fused_15=106_000)
    rows = serve_rows(report)
    assert rows[1] == {
        "set": "musique",
        "stream": "zipf-1.0",
        "system": "depcache-fused-15",
        "phase": "warm",
        "stream_requests": 200,
        "prompt": 3333.3333,
        "computed": 106_000,
        "to_sglang": 1.06,
        "ttft_ms": 1060.0,
        "ttft_to_sglang": 1.06,
    }
    bars = judge({"serve": rows})
    assert bars["verbatim and fresh, served"]["held"] is False
    assert bars["paraphrased, 15 %, served"]["held"] is None
    default = serve_rows(served("chunks:musique", sglang=100, depcache_fused_15=80))
    assert judge({"serve": default})["paraphrased, 15 %, served"]["held"] is True


def test_the_check_joins_reports_and_fails_for_a_missed_bar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"tokens": [simulated("paraphrased", "served 0.15", 0.67)]}
    files = [
        write(tmp_path, "tokens.json", good),
        write(tmp_path, "serve.json", served("chunks:musique", sglang=100, depcache_fused_5=44)),
    ]
    out = tmp_path / "out.json"
    words = ["chunks", "--json", str(out), "--check"]
    assert main([*words, *map(str, files)]) == 0
    report = json.loads(out.read_text())
    assert {*PARTS, "bars"} <= set(report)
    assert [row["file"] for row in report["serve"]] == 2 * ["serve.json"]
    assert set(report["bars"]) == {bar.name for bar in BARS}
    assert "held       paraphrased, 5 %, served" in capsys.readouterr().out
    missed = write(tmp_path, "missed.json", served("chunks:nq", sglang=100, depcache_fused_5=61))
    assert main([*words, str(missed)]) == 1
    assert "MISSED     paraphrased, 5 %, served" in capsys.readouterr().out


@pytest.mark.parametrize("report", [[], {}, {"rows": []}, {"manifest": {}}, {"tokens": 3}])
def test_a_file_that_is_no_report_is_refused(tmp_path: Path, report: Any) -> None:
    with pytest.raises(ConfigError, match="name"):
        join_reports([write(tmp_path, "wrong.json", report)])
