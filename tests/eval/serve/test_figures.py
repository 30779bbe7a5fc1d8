# SPDX-License-Identifier: Apache-2.0
"""Rows, ratios and the time line, from phases whose numbers are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from depcache.prompt.paths import Path as GraphPath
from eval.serve.figures import make_ratio_ranges, make_ratios, make_rows, over_time
from eval.serve.measure import LOAD, PRECOMPUTED, STREAM, WARM, Measured, Run, split
from eval.serve.plots import draw_distribution, draw_time_line, plot_run
from eval.serve.records import Record, summarize
from eval.serve.report import to_html, to_markdown
from eval.serve.systems import get_system
from eval.serve.workloads import Request, ServeSpec, Workload
from eval.workloads.graphs import hold

PATHS: tuple[GraphPath, ...] = (("a", "r", "b"),)


def phase(system: str, name: str, number: int, ttfts: list[float], text: str = "x") -> Measured:
    records = [
        Record(
            f"{i}",
            system,
            "w",
            name,
            number,
            i,
            ttft_s=ttft,
            e2e_s=2 * ttft,
            prompt_tokens=100,
            cached_tokens=10 * i,
            output_tokens=2,
            output_text=text,
        )
        for i, ttft in enumerate(ttfts)
    ]
    return Measured(
        get_system(system), name, number, records, summarize(records, sum(ttfts)), 2 * 10**9
    )


@pytest.fixture
def run() -> Run:
    requests = [Request("q", ("a",), PATHS, ("Rome",))] * 8
    parts = split(requests, {STREAM: 2, WARM: 3, LOAD: 2})
    run = Run(Workload(ServeSpec("questions:demo", 8), requests, hold([])), parts)
    for number, factor in ((0, 1.0), (1, 2.0), (2, 4.0)):
        run.measured += [
            phase("depcache", STREAM, number, [0.2 * factor, 0.1 * factor], "Rome"),
            phase("depcache", WARM, number, [0.1 * factor, 0.1 * factor], "Answer: Rome"),
            phase("depcache", LOAD, number, [0.1, 0.1]),
            phase("depcache", PRECOMPUTED, number, [0.05 * factor] * 2),
            phase("sglang", STREAM, number, [0.9 * factor, 0.9 * factor], "Rome"),
            phase("sglang", WARM, number, [0.5 * factor, 0.5 * factor, 9.0 * factor]),
            phase("sglang", LOAD, number, [0.4, 0.4]),
        ]
    return run


def test_ratios_are_taken_within_a_round(run: Run) -> None:
    ratios = make_ratios(run)
    assert ratios["ttft_warm_vs_sglang"] == pytest.approx(5)
    assert ratios["ttft_stream_vs_sglang"] == pytest.approx(6)
    assert ratios["ttft_precomputed_vs_sglang"] == pytest.approx(10)
    assert ratios["throughput_vs_sglang"] == pytest.approx(4)
    assert ratios["ttft_warm_vs_vllm"] is None


def test_every_system_of_a_run_with_the_same_facts_is_compared(run: Run) -> None:
    run.measured += [
        phase("depcache-lru", WARM, 0, [0.15, 0.15]),
        phase("sglang-lpm", WARM, 0, [0.3, 0.3]),
        phase("norag", WARM, 0, [0.01, 0.01]),
    ]
    ratios = make_ratios(run)
    assert ratios["ttft_warm_vs_depcache_lru"] == pytest.approx(1.5)
    assert ratios["ttft_warm_vs_sglang_lpm"] == pytest.approx(3)
    assert ratios["ttft_stream_vs_sglang_lpm"] is None
    assert not any(name.endswith("_vs_norag") for name in ratios)
    assert not any(name.endswith("_vs_depcache") for name in ratios)


def test_the_spread_of_a_ratio_is_over_rounds(run: Run) -> None:
    for measured in run.measured:
        if (measured.system.name, measured.phase, measured.round) == ("sglang", WARM, 1):
            measured.summary["median_ttft_ms"] *= 2
    ranges = make_ratio_ranges(run)
    assert make_ratios(run)["ttft_warm_vs_sglang"] == pytest.approx(5)
    assert ranges["ttft_warm_vs_sglang"] == pytest.approx([5, 10])
    assert ranges["throughput_vs_sglang"] == pytest.approx([4, 4])
    assert ranges["ttft_warm_vs_vllm"] is None


def test_rows_are_medians_over_rounds(run: Run) -> None:
    rows = {(row["system"], row["phase"]): row for row in make_rows(run)}
    assert list(rows)[:4] == [("depcache", p) for p in (STREAM, WARM, LOAD, PRECOMPUTED)]
    warm = rows["depcache", WARM]
    assert warm["ttft_ms_p50"] == 200 and warm["ttft_ms_p50_range"] == [100, 400]
    assert warm["hit_rate"] == 0.05 and warm["computed_tokens"] == 190
    assert (warm["rounds"], warm["memory_gb"]) == (3, 2.0)
    assert warm["em"] == 1.0 and rows["sglang", WARM]["em"] == 0
    assert rows["depcache", STREAM]["agreement"] == 1.0 and warm["agreement"] == 0.0
    assert rows["sglang", WARM]["agreement"] == 1.0


def test_failures_are_counted_in_rows(run: Run) -> None:
    for measured in run.measured:
        if measured.phase == WARM and measured.system.name == "depcache":
            measured.records[0].error = "it broke"
            measured.summary = summarize(measured.records, 1.0)
    rows = {(row["system"], row["phase"]): row for row in make_rows(run)}
    assert rows["depcache", WARM]["failed"] == 1
    assert rows["depcache", WARM]["agreement"] == 0.0


def test_the_time_line_goes_in_windows(run: Run) -> None:
    points = over_time(run, STREAM)
    ours = [point for point in points if point["system"] == "depcache"]
    assert [point["query_idx"] for point in ours] == [0, 1]
    assert [point["hit_rate"] for point in ours] == [0.0, 0.1]
    assert ours[0]["ttft_ms_p50"] == pytest.approx(400)


@pytest.mark.parametrize(("num", "num_points"), [(1, 1), (10, 10), (60, 10), (200, 10), (500, 25)])
def test_few_requests_make_points_too(run: Run, num: int, num_points: int) -> None:
    run.measured = [phase("depcache", STREAM, 0, [0.1] * num)]
    points = over_time(run, STREAM)
    assert len(points) == num_points
    assert [point["query_idx"] for point in points][:2] == [0, max(1, num // num_points)][:num]


@pytest.mark.parametrize("slowest_s", [0.06, 0.4, 7.0, 900.0])
def test_charts_of_ten_requests_can_be_read(run: Run, slowest_s: float) -> None:
    pytest.importorskip("matplotlib")
    times_s = [0.05 + (slowest_s - 0.05) * i / 9 for i in range(10)]
    run.measured = [
        phase(system, name, 0, [factor * t for t in times_s])
        for system, factor in (("depcache", 1.0), ("sglang-dedup", 1.01), ("vllm", 1.02))
        for name in (STREAM, WARM, LOAD, PRECOMPUTED)
    ]
    names = ["DepCache", "SGLang, text of the merged trees", "vLLM, prefix caching"]
    for figure in (draw_distribution(run), draw_time_line(run)):
        figure.canvas.draw()
        for axes in figure.axes:
            assert [text.get_text() for text in axes.get_legend().get_texts()] == names
            assert all(len(line.get_xdata()) >= 10 for line in axes.get_lines())
            for axis in (axes.xaxis, axes.yaxis):
                boxes = [
                    label.get_window_extent()
                    for label in axis.get_ticklabels(which="both")
                    if label.get_text() and label.get_visible()
                ]
                assert len(boxes) >= 2
                pairs = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i]]
                assert not any(a.overlaps(b) for a, b in pairs)


def test_the_report_can_be_read_by_people(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plots = plot_run(run, tmp_path)
    assert len(plots) == 2 and all(p.read_bytes().startswith(b"\x89PNG") for p in plots)
    name = run.workload.spec.name
    report = {
        "rows": [{**row, "workload": name} for row in make_rows(run)],
        "workloads": [name],
        "ratios_by_workload": {name: make_ratios(run)},
        "ratio_ranges": {name: make_ratio_ranges(run) | {"ttft_stream_vs_sglang": [4.0, 7.0]}},
        "gains": {name: {}},
        "manifest": {
            "date": "2026-01-01",
            "command": "python -m eval serve",
            "template": "path",
            "model": {"name": "m"},
            "machine": {"processor": "<p>", "cores": 2},
        },
    }
    text = to_markdown(report, plots)
    assert "| depcache" in text and "vllm" not in text
    row = next(line for line in text.splitlines() if line.startswith("| sglang ") and "(4" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["sglang", "6.00 (4.00-7.00)", "5.00", "10.00", "4.00", "4.00"]
    page = to_html(report, plots)
    assert page.count("data:image/png;base64,") == 2 and "&lt;p&gt;" in page
    assert "http://" not in page and 'src="/' not in page
