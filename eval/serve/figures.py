# SPDX-License-Identifier: Apache-2.0
"""From the phases that were measured to rows, ratios, and where the gain comes from."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from depcache.demo.sample import final_answer
from eval.quality.scores import score
from eval.serve.measure import LOAD, PHASES, PRECOMPUTED, STREAM, WARM, Measured, Run
from eval.serve.systems import Sizes, Writer

OURS = "depcache"
MAX_WINDOW = 20
"""Requests that become one point over time."""

KINDS = {
    "ttft_stream": (STREAM, STREAM, "median_ttft_ms"),
    "ttft_warm": (WARM, WARM, "median_ttft_ms"),
    "ttft_precomputed": (PRECOMPUTED, WARM, "median_ttft_ms"),
    "throughput": (LOAD, LOAD, "request_throughput"),
    "ttft_load_p99": (LOAD, LOAD, "p99_ttft_ms"),
}
"""Kind of a ratio: our phase, theirs, and of what. Above 1 DepCache is better."""

RIVALS = ("sglang", "sglang-dedup", "vllm")
"""They are always among the ratios, measured or not."""

_ROW_KEYS = {
    "ttft_ms_p50": "median_ttft_ms",
    "ttft_ms_p90": "p90_ttft_ms",
    "ttft_ms_p99": "p99_ttft_ms",
    "itl_ms_p50": "median_itl_ms",
    "e2e_ms_p50": "median_e2e_latency_ms",
    "throughput_rps": "request_throughput",
    "goodput_rps": "request_goodput",
    "hit_rate": "hit_rate",
    "input_tokens": "total_input_tokens",
    "computed_tokens": "computed_tokens",
    "failed": "failed",
}


def make_rows(run: Run) -> list[dict[str, Any]]:
    """One row for each system and phase: medians over the rounds, with their range.

    `agreement` is the share of answers that are, to the letter, those of `sglang`; `em` the
    share of right ones where it is known what is right.
    """
    rows: list[dict[str, Any]] = []
    for system, phase, rounds in _groups(run.measured):
        row: dict[str, Any] = {
            "system": system,
            "workload": run.workload.spec.name,
            "phase": phase,
            "rounds": len(rounds),
        }
        for key, source in _ROW_KEYS.items():
            values = [each.summary[source] for each in rounds if source in each.summary]
            row[key] = round(median(values), 4) if values else None
        ttfts = [m.summary["median_ttft_ms"] for m in rounds if "median_ttft_ms" in m.summary]
        row["ttft_ms_p50_range"] = [round(min(ttfts), 4), round(max(ttfts), 4)] if ttfts else None
        row["memory_gb"] = round(median(each.memory_bytes for each in rounds) / 1e9, 2)
        row |= _quality(run, rounds)
        rows.append(row)
    return rows


def make_ratios(run: Run) -> dict[str, float | None]:
    """`KIND_vs_SYSTEM`: median over the rounds of the ratio in each.

    Of RIVALS, with None where one of the two was not measured, and of every other system of the
    run that was given the same facts.
    """
    return {
        name: round(median(values), 3) if values else None
        for name, values in _ratios_of_rounds(run).items()
    }


def make_ratio_ranges(run: Run) -> dict[str, list[float] | None]:
    """The least and the greatest ratio of a round; None where `make_ratios` has None."""
    return {
        name: [round(min(values), 3), round(max(values), 3)] if values else None
        for name, values in _ratios_of_rounds(run).items()
    }


def ratio_name(kind: str, system: str) -> str:
    """The key of a ratio: ttft_warm_vs_sglang_dedup."""
    return f"{kind}_vs_{system.replace('-', '_')}"


def find_rivals(run: Run) -> list[str]:
    """RIVALS, then the others of the run that were asked with facts; ours is not among them."""
    asked = (m.system.name for m in run.measured if m.system.prompt != "none")
    return [name for name in dict.fromkeys((*RIVALS, *asked)) if name != OURS]


def _ratios_of_rounds(run: Run) -> dict[str, list[float]]:
    """Every ratio in every round that measured both sides."""
    found = {(m.system.name, m.phase, m.round): m.summary for m in run.measured}
    rounds = sorted({measured.round for measured in run.measured})
    ratios: dict[str, list[float]] = {}
    for system in find_rivals(run):
        for kind, (mine, theirs, key) in KINDS.items():
            values = ratios.setdefault(ratio_name(kind, system), [])
            for number in rounds:
                ours = found.get((OURS, mine, number), {}).get(key)
                other = found.get((system, theirs, number), {}).get(key)
                if ours and other:
                    values.append(ours / other if kind == "throughput" else other / ours)
    return ratios


def make_gain(run: Run, writer: Writer, phase: str = WARM) -> dict[str, Any]:
    """Where DepCache computes less, in tokens and in pairs of tokens that attend, per request.

    The text of all paths becomes trees (deduplication); of the trees most is cached (reuse); of
    what is computed every token attends to its ancestors only (mask). The first and the last
    are counted on the prompts, the second is what the servers report.
    """
    sizes = [writer.sizes(each) for each in run.requests[phase] if each.has_paths]
    if not sizes:
        return {}
    ours = [m for m in run.measured if (m.system.name, m.phase) == (OURS, phase)]
    theirs = [m for m in run.measured if (m.system.name, m.phase) == ("sglang", phase)]
    gain: dict[str, Any] = {"phase": phase} | {
        name: round(sum(getattr(size, name) for size in sizes) / len(sizes))
        for name in Sizes.__dataclass_fields__
    }
    for name, group in (("computed_tokens", ours), ("sglang_computed_tokens", theirs)):
        done = sum(m.summary["completed"] for m in group)
        total = sum(m.summary["computed_tokens"] for m in group)
        gain[name] = round(total / done) if done else None
    return gain


def over_time(run: Run, phase: str = STREAM) -> list[dict[str, Any]]:
    """Hit rate and median time to first token of every few requests of a phase, by system.

    Few are a tenth of them, and MAX_WINDOW at most.
    """
    points: list[dict[str, Any]] = []
    for system, _, rounds in _groups([m for m in run.measured if m.phase == phase]):
        num = len(rounds[0].records)
        window = max(1, min(MAX_WINDOW, num // 10))
        for start in range(0, num, window):
            part = [
                record
                for measured in rounds
                for record in measured.records[start : start + window]
                if record.ttft_s is not None and not record.error
            ]
            if part:
                prompt = sum(record.prompt_tokens for record in part)
                points.append(
                    {
                        "system": system,
                        "query_idx": start,
                        "hit_rate": sum(record.cached_tokens for record in part) / prompt,
                        "ttft_ms_p50": 1e3 * median(r.ttft_s for r in part if r.ttft_s is not None),
                    }
                )
    return points


def _groups(measured: Sequence[Measured]) -> list[tuple[str, str, list[Measured]]]:
    """Returns (system, phase, its rounds), in the order they came."""
    found: dict[tuple[str, str], list[Measured]] = {}
    for each in measured:
        found.setdefault((each.system.name, each.phase), []).append(each)
    systems = list(dict.fromkeys(system for system, _ in found))
    return [
        (system, phase, found[system, phase])
        for system in systems
        for phase in PHASES
        if (system, phase) in found
    ]


def _quality(run: Run, rounds: Sequence[Measured]) -> dict[str, float | None]:
    phase = WARM if rounds[0].phase == PRECOMPUTED else rounds[0].phase
    judged = {
        m.round: m.records for m in run.measured if m.system.name == "sglang" and m.phase == phase
    }
    same: list[bool] = []
    right: list[float] = []
    for measured in rounds:
        baseline = judged.get(measured.round, [])
        for record, other in zip(measured.records, baseline, strict=False):
            if not record.error and not other.error:
                same.append(record.output_text == other.output_text)
        for record in measured.records:
            answers = run.requests[phase][record.query_idx].answers
            if answers:
                right.append(score(final_answer(record.output_text), answers).em)
    return {
        "agreement": round(sum(same) / len(same), 4) if same else None,
        "em": round(sum(right) / len(right), 4) if right else None,
    }
