# SPDX-License-Identifier: Apache-2.0
"""The report of a soak, and the bar that it has to hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eval.soak.judge import Judge
from eval.soak.ledger import MAX_FAULTS_KEPT, Ledger
from eval.soak.stalls import LIMIT_MS, Stall

RSS_MB_PER_HOUR = 20.0
MIN_WATCHED_S = 120.0
"""A slope over less says nothing: allocators take memory in steps."""
SERIOUS = ("died", "no answer", "refused", "bad refusal", "no rest", "held at rest", "phase ended")
"""Kinds of faults besides wrong answers and 5xx."""


def make_report(
    ledger: Ledger,
    judge: Judge,
    *,
    minutes: float,
    seed: int,
    leaked: int,
    growth: Mapping[str, Any],
    ttft: Mapping[str, float | None],
    kills: list[dict[str, Any]],
    restart_hits: int,
    stalls: list[Stall],
    usual_ms: Mapping[str, float],
    notes: Mapping[str, Any],
) -> dict[str, Any]:
    """All figures; `missed` has one line for each thing that is not as it must be."""
    longest = max((stall.stall_ms for stall in stalls), default=None)
    report: dict[str, Any] = {
        "minutes": round(minutes, 2),
        "requests": sum(ledger.requests.values()),
        "judged": judge.num_judged,
        "wrong": ledger.num_faults("wrong"),
        "http_5xx": ledger.num_faults("5xx"),
        "leaked_tokens": leaked,
        "rss_growth_mb_per_hour": growth.get("rss_growth_mb_per_hour"),
        "fd_growth": growth.get("fd_growth"),
        "kills_survived": sum(kill["loaded_after"] > 0 for kill in kills),
        "restart_hits": restart_hits,
        "max_stall_ms": None if longest is None else round(longest, 1),
        "seed": seed,
        "judged_how": dict(judge.judged),
        "not_judged_for_lack_of_time": judge.num_passed,
        "worst_logprob_error": judge.worst_error,
        **ttft,
        "growth": dict(growth),
        "requests_by_kind": _sorted(ledger.requests),
        "statuses": _sorted(ledger.statuses),
        "refusals_by_reason": _sorted(ledger.refusals),
        "seen": _sorted(ledger.seen),
        "kills": kills,
        "stalls": [stall.to_json() for stall in stalls],
        "usual_ms": {user: round(ms, 1) for user, ms in usual_ms.items()},
        "phases": dict(notes),
        "faults_by_kind": {kind: number for kind in SERIOUS if (number := ledger.num_faults(kind))},
        "faults": ledger.faults[:MAX_FAULTS_KEPT],
        "stock_5xx": ledger.stock[:MAX_FAULTS_KEPT],
    }
    return report | {"missed": find_missed(report)}


def find_missed(report: Mapping[str, Any]) -> list[str]:
    """One line for each part of the bar that a report does not hold; [] holds it.

    What a run did not measure, because its phase was left out, is not missed.
    """
    missed = [
        f"{report[name]} {text}: 0 are allowed"
        for name, text in (
            ("wrong", "wrong answers"),
            ("http_5xx", "answers of 5xx"),
            ("leaked_tokens", "tokens leaked"),
        )
        if report[name]
    ]
    missed += [
        f"{count} x {kind}: 0 are allowed" for kind, count in report["faults_by_kind"].items()
    ]
    slope, watched = report["rss_growth_mb_per_hour"], report["growth"].get("seconds_watched", 0)
    error = report["growth"].get("rss_growth_mb_per_hour_error", 0.0)
    # Twice the error: one request that is larger than those before is no growth.
    if slope is not None and watched >= MIN_WATCHED_S and slope - 2 * error > RSS_MB_PER_HOUR:
        missed.append(
            f"memory grew by {slope} MB an hour, give or take {error}, watched for {watched:.0f} "
            f"s: {RSS_MB_PER_HOUR:.0f} are allowed"
        )
    for stall in report["stalls"]:
        if stall["stall_ms"] > LIMIT_MS:
            missed.append(
                f"{stall['request']!r} held up {stall['who']} for {stall['stall_ms']} ms: "
                f"{LIMIT_MS:.0f} are allowed"
            )
    for kill in report["kills"]:
        if not kill["loaded_after"]:
            missed.append(f"nothing was loaded from disk after {kill['how']} and a restart")
    return missed


def to_text(report: Mapping[str, Any]) -> str:
    """What to read first."""
    names = (
        *("minutes", "requests", "judged", "wrong", "http_5xx", "leaked_tokens"),
        *("rss_growth_mb_per_hour", "fd_growth", "kills_survived", "restart_hits", "max_stall_ms"),
    )
    lines = [f"{name:<24} {report[name]}" for name in names]
    lines += [f"missed: {line}" for line in report["missed"]] or ["the bar is held"]
    return "\n".join(lines)


def _sorted(counter: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counter.items(), key=lambda item: (-item[1], item[0])))
