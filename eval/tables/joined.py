# SPDX-License-Identifier: Apache-2.0
"""Finished reports about tables as parts of one: what each is known by, and the rows it gives.

eval serve             ttft, ratios, and tokens that servers said beside those that are counted
eval policy            rerank
eval tables --answers  quality, agreement
eval tables --ahead    ahead
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from depcache.errors import ConfigError, shorten
from eval.sets import SetError
from eval.tables.served import compare_served

LISTS = ("tokens", "ttft", "quality", "agreement", "rerank")
"""Parts that are lists of rows."""

_WANTED = (
    "--join takes reports of `eval serve`, `eval policy`, `eval tables --answers` and `--ahead`"
)


def join_reports(files: Sequence[Path], data: Path) -> dict[str, Any]:
    """The parts of all reports together, each part [] or {} where none has it.

    ttft     {"set", "system", "phase", "ms_median", "ms_range", "rounds"} a row
    ratios   by set, how many times better DepCache is; what was not measured is left out
    rerank   {"set", "policy", "scheduler", "capacity_share", "loaded"} a row; `loaded` is the part
             of the tokens that is not found in the cache
    quality, agreement, ahead  as they are in the report
    tokens   see `eval.tables.served`
    reports  what was joined: command, commit and date
    notes    sentences on what is left out

    data  the folder of the schemas. Raises ConfigError for a file that is no report of these.
    """
    parts: dict[str, Any] = {name: [] for name in LISTS}
    parts |= {"ratios": {}, "ahead": {}, "reports": [], "notes": []}
    for file in files:
        report = _read(file)
        about = report.get("manifest", report)
        said = {key: about.get(key) for key in ("command", "commit", "dirty", "date")}
        parts["reports"].append(said)
        if "ratios_by_workload" in report:
            _add_serve(parts, report, data)
        elif "scheduler_points" in report:
            parts["rerank"] += _rerank(report)
        elif "quality" in report or "ahead" in report:
            parts["quality"] += report.get("quality", [])
            parts["agreement"] += report.get("agreement", [])
            parts["ahead"] |= report.get("ahead", {})
        else:
            raise ConfigError(f"{str(file)!r} is none of these: {_WANTED}")
    return parts


def _read(file: Path) -> dict[str, Any]:
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(file)!r} cannot be read ({shorten(error)}): {_WANTED}") from error
    if not isinstance(report, dict):
        raise ConfigError(f"{str(file)!r} is no report: {_WANTED}")
    return report


def _add_serve(parts: dict[str, Any], report: dict[str, Any], data: Path) -> None:
    parts["ttft"] += [
        {
            "set": row["workload"],
            "system": row["system"],
            "phase": row["phase"],
            "ms_median": row["ttft_ms_p50"],
            "ms_range": row["ttft_ms_p50_range"],
            "rounds": row["rounds"],
        }
        for row in report["rows"]
    ]
    for name, ratios in report["ratios_by_workload"].items():
        found = {kind: ratio for kind, ratio in ratios.items() if ratio is not None}
        parts["ratios"].setdefault(name, {}).update(found)
    try:
        parts["tokens"] += compare_served(report, data)
    except SetError as error:
        parts["notes"].append(f"what servers said is not beside what is counted: {error}")


def _rerank(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "set": row["workload"],
            "policy": row["policy"],
            "scheduler": row["scheduler"],
            "capacity_share": row["capacity_share"],
            "loaded": round(1 - row["hit_rate"], 4),
        }
        for row in report["rows"]
    ]
