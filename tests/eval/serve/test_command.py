# SPDX-License-Identifier: Apache-2.0
"""The command on real servers: every file of a run, and counts that must be so."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.serve.command import MAX_ANSWER_TOKENS, MAX_TOKENS

pytestmark = pytest.mark.sglang


def test_a_run_on_real_servers(model_path: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out, report_file = tmp_path / "run", tmp_path / "report.json"
    arguments = ["serve", "--workloads", "zipfian:demo", "--model", str(model_path("llama_gqa"))]
    arguments += ["--systems", "depcache", "sglang", "--entities", "3", "--paths", "6"]
    arguments += ["--pool", "30", "--pool-tokens", "20000", "--rounds", "1"]
    arguments += ["--stream", "6", "--warm", "4", "--load", "6", "--concurrency", "3"]
    arguments += ["--load-tokens", "4", "--max-tokens", "2"]
    arguments += ["--server-args", "--max-running-requests 5"]
    assert main([*arguments, "--out", str(out), "--json", str(report_file)]) == 0

    report = json.loads(report_file.read_text())
    rows = {(row["system"], row["phase"]): row for row in report["rows"]}
    assert set(rows) == {
        *((system, phase) for system in ("depcache", "sglang") for phase in PHASES),
        ("depcache", "precomputed"),
    }
    assert all(row["failed"] == 0 and row["ttft_ms_p50"] > 0 for row in rows.values())
    # All trees were computed ahead, so less is left to compute than from the requests before.
    warm, precomputed = rows["depcache", "warm"], rows["depcache", "precomputed"]
    assert precomputed["computed_tokens"] < warm["computed_tokens"]
    assert precomputed["hit_rate"] > 0.5
    assert rows["depcache", "stream"]["input_tokens"] < rows["sglang", "stream"]["input_tokens"]
    assert set(report["ratios"]) >= {"ttft_warm_vs_sglang", "throughput_vs_sglang"}
    assert report["ratios"]["ttft_warm_vs_sglang"] > 0
    assert report["ratios"]["ttft_warm_vs_vllm"] is None
    gain = report["gains"]["zipfian:demo"]
    assert gain["merged_tokens"] < gain["flat_tokens"]
    assert gain["dependency_pairs"] < gain["merged_pairs"] < gain["flat_pairs"]

    manifest = json.loads((out / "manifest.json").read_text())
    assert str(tmp_path) not in json.dumps(manifest)
    assert set(manifest["servers"]) == {"depcache", "sglang"}
    commands = [server["command"] for server in manifest["servers"].values()]
    assert all("--max-running-requests 5" in command for command in commands)
    records = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    counts = Counter((record["system"], record["phase"]) for record in records)
    assert counts["depcache", "stream"] == 6 and counts["depcache", "precomputed"] == 4
    assert len({record["rid"] for record in records}) == len(records) == 6 + 4 + 6 + 4 + 16
    for record in records:
        if record["system"] == "depcache":
            said = record["report"]
            reused = sum(said[name] for name in ("shared", "shifted", "loaded", "tail"))
            assert reused == record["cached_tokens"]
        assert record["e2e_s"] >= record["ttft_s"]
    summaries = json.loads((out / "summary.json").read_text())
    assert {"median_ttft_ms", "p99_itl_ms", "request_throughput"} < set(summaries[0])
    for name in ("report.md", "report.html", "zipfian_demo_ttft.png", "zipfian_demo_stream.png"):
        assert (out / name).stat().st_size > 500


PHASES = ("stream", "warm", "load")


def test_requests_can_be_exported(
    model_path: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["serve", "--workloads", "uniform:demo", "--model", str(model_path("llama_gqa"))]
    arguments += ["--quick", "--entities", "2", "--pool", "20", "--export", str(tmp_path / "out")]
    assert main(arguments) == 0
    files = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert files == ["tokenizer", "uniform_demo.depcache.jsonl", "uniform_demo.sglang.jsonl"]
    said = capsys.readouterr().out.splitlines()
    assert [line.count("-m sglang.bench_serving") for line in said] == [1, 1]
    line = (tmp_path / "out" / files[1]).read_text().partition("\n")[0]
    assert json.loads(line)["max_tokens"] == MAX_TOKENS

    arguments[2] = "questions:demo"
    assert main(arguments) == 0
    line = (tmp_path / "out" / "questions_demo.sglang.jsonl").read_text().partition("\n")[0]
    assert json.loads(line)["max_tokens"] == MAX_ANSWER_TOKENS


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--systems", "sglan"], "'sglan' is no system"),
        (["--systems", "vllm"], "name its python with --vllm"),
        (["--workloads", "zipfian:metaqa"], "there is no graph 'metaqa'"),
        (["--model", "nowhere"], "is no folder of a model"),
        (["--rate", "0"], "--rate is 0: choose more than 0"),
        (["--rate", "-1", "--trace", "trace.jsonl"], "--rate is -1: choose more than 0"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    model_path: Callable[[str], Path],
    arguments: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("matplotlib")
    if "--model" not in arguments:
        arguments = ["--model", str(model_path("llama_gqa")), *arguments]
    assert main(["serve", *arguments]) == 2
    assert says in capsys.readouterr().err
