# SPDX-License-Identifier: Apache-2.0
"""Whether reports hold what fused contexts promise: `python -m eval chunks --check FILE ...`.

A bar is judged by the rows that say something of it, the worst of them; without such rows it is not
judged. Tokens are in prompts of 2,000 or more where they count for a bar of paraphrased streams.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depcache.errors import ConfigError
from eval.chunks.summary import ALL
from eval.workloads.made_up import MADE_UP

PARTS = ("tokens", "serve", "quality", "untrained_trees")
MIN_PROMPT = 2000
"""Tokens of a prompt on average, from which the bars of paraphrased streams hold."""

MIN_STREAM = 200
"""Requests before the warm ones, from which a server's warm phase counts."""

PARAPHRASED, FUSED, ORACLE = "paraphrased", "depcache-fused", "oracle"
WARM, AHEAD = "warm", "precomputed"
"""Phases of `eval serve`; the second asks what the first does, its contexts computed ahead."""

UNTRAINED, SHIPPED = "base", "depcache-tiny"
"""Models in the reports of `--rows` and `--methods`; the first is one as it comes."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bar:
    """What is asked of one measure.

    part     of the joined report, one of `PARTS`
    measure  name of the value in its rows
    limit    for the value; `at_most` says on which side it has to be
    applies  whether a row is one that the bar is about
    best     the best of the rows is judged, not the worst: one setting must hold it
    """

    name: str
    part: str
    measure: str
    limit: float
    at_most: bool
    applies: Callable[[Row], bool]
    best: bool = False

    def judge(self, report: dict[str, Any]) -> dict[str, Any]:
        """{"bar", "value", "held", "of"}; value and held are None where no row says anything."""
        rows = [row for row in report.get(self.part, ()) if self.applies(row)]
        rows = [row for row in rows if row.get(self.measure) is not None]
        said = f"{self.measure} {'<=' if self.at_most else '>='} {self.limit:g}"
        if not rows:
            return {"bar": said, "value": None, "held": None, "of": None}
        pick = max if self.at_most != self.best else min
        found = pick(rows, key=lambda row: row[self.measure])
        value = found[self.measure]
        held = value <= self.limit if self.at_most else value >= self.limit
        return {"bar": said, "value": value, "held": held, "of": _describe(found)}


def join_reports(files: Sequence[Path]) -> dict[str, Any]:
    """One report of several: those of `eval chunks`, and of `eval serve` on chunks or rows.

    Returns the lists of `PARTS`, each row with the name of its file as `file`. Raises ConfigError
    for a file that is no such report.
    """
    joined: dict[str, Any] = {part: [] for part in PARTS}
    for file in files:
        try:
            report = json.loads(file.read_text(encoding="utf-8"))
            found = {"serve": serve_rows(report)} if "manifest" in report else report
            parts = {part: list(found[part]) for part in PARTS if part in found}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{file} is no report of `eval chunks` or `eval serve` ({error!r}): name one"
            ) from error
        if not parts:
            raise ConfigError(f"{file} has none of {', '.join(PARTS)}: name a report that has one")
        for part, rows in parts.items():
            joined[part] += [row | {"file": file.name} for row in rows]
    return joined


def serve_rows(report: dict[str, Any]) -> list[Row]:
    """The rows of one report of `eval serve`, each beside SGLang's of its workload and phase.

    set, stream   of `chunks:<set>:<stream>`; of other workloads the whole name, and no stream
    stream_requests  how many requests ran before the phase `warm`
    prompt        mean tokens of a prompt as SGLang has it
    computed      tokens, both passes; `to_sglang` by those of SGLang
    ttft_ms       median; `ttft_to_sglang` by that of SGLang
    """
    settings, rows = report["manifest"]["settings"], report["rows"]
    base = {(row["workload"], row["phase"]): row for row in rows if row["system"] == "sglang"}
    found: list[Row] = []
    for row in rows:
        phase = WARM if row["phase"] == AHEAD else row["phase"]
        stock = base.get((row["workload"], phase))
        if row.get("computed_tokens") is None or stock is None:
            continue
        found.append(
            {
                **_read_workload(row["workload"]),
                "system": row["system"],
                "phase": row["phase"],
                "stream_requests": settings["counts"]["stream"],
                "prompt": _ratio(stock["input_tokens"], settings["counts"][phase]),
                "computed": row["computed_tokens"],
                "to_sglang": _ratio(row["computed_tokens"], stock["computed_tokens"]),
                "ttft_ms": row["ttft_ms_p50"],
                "ttft_to_sglang": _ratio(row["ttft_ms_p50"], stock["ttft_ms_p50"]),
            }
        )
    return found


def judge(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns what each of `BARS` says of a joined report, by its name."""
    return {bar.name: bar.judge(report) for bar in BARS}


def as_lines(bars: dict[str, dict[str, Any]]) -> Iterable[str]:
    """One line of text for each bar."""
    for name, bar in bars.items():
        word = {True: "held", False: "MISSED", None: "not judged"}[bar["held"]]
        value = "" if bar["value"] is None else f": {bar['value']:g} ({bar['of']})"
        yield f"{word:10} {name}, {bar['bar']}{value}"


def _read_workload(name: str) -> Row:
    kind, _, rest = name.partition(":")
    if kind != "chunks":
        return {"set": name, "stream": None}
    chunk_set, _, stream = rest.partition(":")
    return {"set": chunk_set, "stream": stream or PARAPHRASED}


def _ratio(value: float | None, by: float | None) -> float | None:
    return round(value / by, 4) if value is not None and by else None


def _describe(row: Row) -> str:
    keys = ("model", "set", "stream", "system", "phase", "form", "method", "placement", "recompute")
    words = [f"{row[key]}" for key in keys if row.get(key) not in (None, "")]
    return ", ".join([*words, *([row["file"]] if "file" in row else [])])


def _simulated(share: float) -> Callable[[Row], bool]:
    return lambda row: (
        row["system"] == f"served {share:g}"
        and row["stream"] == PARAPHRASED
        and row.get("prompt", 0) >= MIN_PROMPT
    )


def _warm(system: str) -> Callable[[Row], bool]:
    return lambda row: (
        row["system"] == system
        and row["stream"] == PARAPHRASED
        and row["phase"] == WARM
        and row["stream_requests"] >= MIN_STREAM
        and (row["prompt"] or 0) >= MIN_PROMPT
    )


def _repeats(row: Row) -> bool:
    return row["stream"] not in (None, PARAPHRASED) and row["system"].startswith(FUSED)


def _cut(method: str, share: float, name: str) -> Callable[[Row], bool]:
    """Chunks of fixed size, the set of this name, the model that ships."""
    return lambda row: (
        row["form"] == "cut"
        and row["set"] == name
        and row["model"] == SHIPPED
        and (row["method"], row["recompute"]) == (method, share)
    )


def _rows(row: Row) -> bool:
    """Whole paths, all sets, the model as it comes, at 15 % or less and without the oracle."""
    return (
        (row["form"], row["set"], row["model"]) == ("paths", ALL, UNTRAINED)
        and row["method"] not in ("full", ORACLE)
        and row["recompute"] <= 0.15
    )


def _cuts(name: str, suffix: str = "") -> list[Bar]:
    """The bars of chunks that are cut anywhere."""
    asked = (
        ("previous, 0 %", "previous", 0.0, 0.95, False),
        ("first, 15 %", "first", 0.15, 0.75, False),
        ("all-layer oracle, 15 %", ORACLE, 0.15, 0.75, False),
        ("mixed, 15 %", "mixed", 0.15, 0.65, False),
        ("random, 15 %", "random", 0.15, 0.2, True),
    )
    return [
        Bar(title + suffix, "quality", "gone", limit, at_most, _cut(method, share, name))
        for title, method, share, limit, at_most in asked
    ]


BARS = (
    Bar("paraphrased, 5 %, simulated", "tokens", "to_prefix", 0.6, True, _simulated(0.05)),
    Bar("paraphrased, 15 %, simulated", "tokens", "to_prefix", 0.8, True, _simulated(0.15)),
    Bar(
        "verbatim and fresh, simulated",
        "tokens",
        "to_prefix",
        1.05,
        True,
        lambda row: row["stream"] != PARAPHRASED and row["system"].startswith("served"),
    ),
    Bar("paraphrased, 5 %, served", "serve", "to_sglang", 0.6, True, _warm(f"{FUSED}-5")),
    Bar("paraphrased, 15 %, served", "serve", "to_sglang", 0.8, True, _warm(f"{FUSED}-15")),
    Bar("TTFT, 5 %, served", "serve", "ttft_to_sglang", 0.75, True, _warm(f"{FUSED}-5")),
    Bar("TTFT, 15 %, served", "serve", "ttft_to_sglang", 0.9, True, _warm(f"{FUSED}-15")),
    Bar("verbatim and fresh, served", "serve", "to_sglang", 1.05, True, _repeats),
    Bar("TTFT of verbatim and fresh, served", "serve", "ttft_to_sglang", 1.05, True, _repeats),
    Bar(
        "TTFT of all computed again",
        "serve",
        "ttft_to_sglang",
        1.1,
        True,
        # SGLang has no phase in which facts are computed ahead.
        lambda row: row["system"] == f"{FUSED}-100" and row["phase"] != AHEAD,
    ),
    *_cuts(ALL),
    *_cuts(MADE_UP, ", made-up worlds"),
    Bar(
        "points lost by a model as it comes, best setting",
        "untrained_trees",
        "lost",
        0.02,
        True,
        _rows,
        best=True,
    ),
    Bar(
        "points lost by depcache-tiny, nothing again",
        "untrained_trees",
        "lost",
        0.02,
        True,
        lambda row: (
            (row["model"], row["form"], row["set"]) == (SHIPPED, "paths", ALL)
            and (row["method"], row["placement"]) == ("reuse", "sequential")
        ),
    ),
)
