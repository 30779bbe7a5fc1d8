# SPDX-License-Identifier: Apache-2.0
"""The tables of a report in markdown: `python -m eval chunks --show FILE`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from depcache.errors import ConfigError
from eval.chunks.summary import ALL
from eval.workloads.made_up import MADE_UP

NAMES = {
    "demo": "demo",
    "metaqa_1hop": "1 hop",
    "metaqa_2hop": "2 hops",
    "metaqa_3hop": "3 hops",
    "2wiki": "2Wiki",
    MADE_UP: "made-up worlds",
    ALL: "all",
}
"""A set -> the head of its column."""


def read_tables(file: Path) -> dict[str, str]:
    """Returns model -> its table, of a report of `eval chunks --rows` or `--methods`.

    Raises ConfigError for a file that is no such report.
    """
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        is_methods = "quality" in report
        rows = report["quality" if is_methods else "untrained_trees"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file} is no report of `eval chunks --rows` ({error}): name one that has the table"
        ) from error
    make = methods_as_markdown if is_methods else as_markdown
    return {model: make(rows, model) for model in dict.fromkeys(row["model"] for row in rows)}


def as_markdown(rows: Sequence[dict[str, Any]], model: str) -> str:
    """Returns the table of one model: one line a method, in the order of `rows`.

    Exact match in % of each set; points lost, KL and tokens computed are of all sets together.
    """
    cells: dict[str, dict[str, dict[str, Any]]] = {}
    mine, whole = _rows_of(rows, model)
    for row in mine:
        cells.setdefault(name_of(row), {})[row["set"]] = row
    sets = [name for name in NAMES if any(name in of_set for of_set in cells.values())]
    heads = ["", *(NAMES[name] for name in sets), "lost, 95 %", "KL", "computed %"]
    lines = [heads, ["---"] * len(heads)]
    for method, of_set in cells.items():
        right = [f"{100 * of_set[name]['right']:.1f}" if name in of_set else "" for name in sets]
        lines.append([method, *right, *_sums(of_set[whole])])
    return "".join(map(_line, lines))


def methods_as_markdown(rows: Sequence[dict[str, Any]], model: str) -> str:
    """Returns the table of methods of one model, over the questions of all sets.

    Points lost against full attention; the share of them that is recovered, where there is a gap;
    the share of the KL of reuse that is gone; tokens computed.
    """
    heads = ["", "right", "lost, 95 %", "recovered %", "KL gone %", "computed %"]
    lines = [heads, ["---"] * len(heads)]
    mine, whole = _rows_of(rows, model)
    for row in mine:
        if row["set"] != whole:
            continue
        lost, _, computed = _sums(row)
        recovered = ""
        if row["recovered"] is not None:
            low, high = (f"{100 * row[name]:.0f}" for name in ("low", "high"))
            recovered = f"{100 * row['recovered']:.0f} ({low} to {high})"
        gone = "" if row.get("gone") is None else f"{100 * row['gone']:.0f}"
        name = row["method"].replace("reuse", "nothing again").replace("oracle", "all-layer oracle")
        if row["method"] == "full":
            name = "**full attention**"
        elif row["recompute"]:
            name += f" {100 * row['recompute']:g} %"
        name += ", not mended" * (row["placement"] == "not mended")
        lines.append([name, f"{100 * row['right']:.1f}", lost, recovered, gone, computed])
    return "".join(map(_line, lines))


def _rows_of(rows: Sequence[dict[str, Any]], model: str) -> tuple[list[dict[str, Any]], str]:
    """Returns those of a model, and the name of all its sets: a report of one has no other name."""
    mine = [row for row in rows if row["model"] == model]
    sets = {row["set"] for row in mine}
    return mine, sets.pop() if len(sets) == 1 else ALL


def name_of(row: dict[str, Any]) -> str:
    """Returns how the table names a method; "**paths, full attention**"."""
    form, method, share = row["form"], row["method"], row["recompute"]
    if method == "full":
        return f"**{form}, full attention**"
    placement = row["placement"] if row["placement"] == "not mended" else f"`{row['placement']}`"
    if method == "reuse":
        return f"{form}, nothing again, {placement}"
    if method.startswith("warm"):
        _, temperature, scale = method.split()
        return f"{form}, temperature {temperature}, scale {scale}, {placement}"
    if method.startswith("shared"):
        behind = "full attention" if method.endswith("full") else placement
        return f"{form}, a made-up row before all, {behind}"
    chosen = "all-layer oracle" if method == "oracle" else method
    return f"{form}, {chosen} {100 * share:g} %, {placement}"


def _sums(row: dict[str, Any]) -> tuple[str, str, str]:
    lost, (low, high) = 100 * row["lost"], (100 * each for each in row["lost_95"])
    points = f"{lost:+.1f} ({low:+.1f} to {high:+.1f})"
    return points, f"{row['kl']:.3f}", f"{100 * row['computed_share']:.0f}"


def _line(cells: Sequence[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells) + "\n"
