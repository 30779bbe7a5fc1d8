# SPDX-License-Identifier: Apache-2.0
"""The files of a run: what was asked of whom, every request, the summary, a report to read."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eval.serve.figures import KINDS
from eval.serve.measure import Run

COLUMNS = {
    "system": "system",
    "phase": "phase",
    "ttft_ms_p50": "TTFT p50 ms",
    "ttft_ms_p50_range": "over rounds",
    "ttft_ms_p99": "p99",
    "itl_ms_p50": "ITL p50 ms",
    "throughput_rps": "requests/s",
    "goodput_rps": "goodput/s",
    "hit_rate": "hit rate",
    "computed_tokens": "computed tokens",
    "agreement": "same answer",
    "em": "EM",
    "failed": "failed",
    "memory_gb": "memory GB",
}


def write_files(
    folder: Path, report: Mapping[str, Any], runs: Sequence[Run], plots: Sequence[Path]
) -> None:
    """manifest.json, requests.jsonl, summary.json, report.md and report.html."""
    (folder / "manifest.json").write_text(_to_json(report["manifest"]), encoding="utf-8")
    with (folder / "requests.jsonl").open("w", encoding="utf-8") as out:
        for run in runs:
            for measured in run.measured:
                for record in measured.records:
                    line = asdict(record) | {"computed_tokens": record.computed_tokens}
                    out.write(json.dumps(line, ensure_ascii=False) + "\n")
    summaries = [
        {
            "system": measured.system.name,
            "workload": run.workload.spec.name,
            "phase": measured.phase,
            "round": measured.round,
            "memory_bytes": measured.memory_bytes,
        }
        | measured.summary
        for run in runs
        for measured in run.measured
    ]
    (folder / "summary.json").write_text(_to_json(summaries), encoding="utf-8")
    (folder / "report.md").write_text(to_markdown(report, plots), encoding="utf-8")
    (folder / "report.html").write_text(to_html(report, plots), encoding="utf-8")


def to_markdown(report: Mapping[str, Any], plots: Sequence[Path] = ()) -> str:
    """Tables of all workloads, ratios, and where the gain comes from."""
    parts = ["# DepCache against others\n", _about(report["manifest"]) + "\n"]
    for name in report["workloads"]:
        parts.append(f"## {name}\n")
        rows = [row for row in report["rows"] if row["workload"] == name]
        parts.append(_table(rows, "github") + "\n")
        parts.append(_ratios(report, name, "github") + "\n")
        parts.append(_gain(report["gains"][name]) + "\n")
    parts += [f"![{plot.stem}]({plot.name})\n" for plot in plots]
    return "\n".join(parts)


def to_html(report: Mapping[str, Any], plots: Sequence[Path] = ()) -> str:
    """The same on one page that needs no other file."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    page = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    ).get_template("report.html.jinja")
    workloads = [
        {
            "name": name,
            # tabulate escapes what is in the cells.
            "table": _table([row for row in report["rows"] if row["workload"] == name], "html"),
            "ratios": _ratios(report, name, "html"),
            "gain": _gain(report["gains"][name]),
        }
        for name in report["workloads"]
    ]
    pictures = [
        {"name": plot.stem, "data": base64.b64encode(plot.read_bytes()).decode()} for plot in plots
    ]
    return page.render(about=_about(report["manifest"]), workloads=workloads, plots=pictures)


def _table(rows: Sequence[Mapping[str, Any]], style: str) -> str:
    from tabulate import tabulate

    used = {
        key: title
        for key, title in COLUMNS.items()
        if any(row.get(key) is not None for row in rows)
    }
    cells = [[_cell(key, row.get(key)) for key in used] for row in rows]
    return tabulate(cells, list(used.values()), tablefmt=style, disable_numparse=True)


def _cell(key: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "-".join(f"{each:,.0f}" for each in value)
    if key in ("hit_rate", "agreement", "em"):
        return f"{100 * value:.1f} %"
    if key.endswith("_rps"):
        return f"{value:.2f}"
    return value if isinstance(value, str) else f"{value:,.4g}" if value < 100 else f"{value:,.0f}"


def _about(manifest: Mapping[str, Any]) -> str:
    machine = manifest["machine"]
    return (
        f"{manifest['date']}, {machine['processor']}, {machine['cores']} cores, model "
        f"{manifest['model']['name']}, paths written as `{manifest['template']}`: "
        f"`{manifest['command']}`"
    )


def _ratios(report: Mapping[str, Any], workload: str, style: str) -> str:
    """A row for each system that DepCache is compared with, a column for each kind of ratio."""
    from tabulate import tabulate

    rows: dict[str, dict[str, str]] = {}
    for name, value in report["ratios_by_workload"][workload].items():
        if value is not None:
            kind, _, system = name.partition("_vs_")
            low, high = report["ratio_ranges"][workload][name]
            spread = f" ({low:.2f}-{high:.2f})" if low < high else ""  # one round has none
            rows.setdefault(system.replace("_", "-"), {})[kind] = f"{value:.2f}{spread}"
    if not rows:
        return ""
    used = [kind for kind in KINDS if any(kind in row for row in rows.values())]
    cells = [[system, *(row.get(kind, "") for kind in used)] for system, row in rows.items()]
    return tabulate(
        cells, ["DepCache is better than", *used], tablefmt=style, disable_numparse=True
    )


def _gain(gain: Mapping[str, Any]) -> str:
    if not gain:
        return ""
    computed = gain["computed_tokens"]
    share = gain["dependency_pairs"] / gain["merged_pairs"]
    return (
        f"A prompt of the phase {gain['phase']} has {gain['flat_tokens']:,} tokens as text and "
        f"{gain['merged_tokens']:,} as trees"
        + (f", of which {computed:,} were computed" if computed is not None else "")
        + f"; with the mask, attention over all of it is {100 * share:.0f} % of causal attention "
        "over the same tokens."
    )


def _to_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
