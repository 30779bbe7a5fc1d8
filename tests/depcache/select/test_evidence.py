# SPDX-License-Identifier: Apache-2.0
"""What a report says of a model decides what is fused with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from depcache.errors import ConfigError
from depcache.prompt.recompute import Recompute
from depcache.select.evidence import MIN_QUESTIONS, Evidence, Measured, read_evidence
from eval.chunks.summary import summarise


def measured(method: str, recompute: float, recovered: float | None) -> Measured:
    return Measured(
        model="mine",
        set="all",
        form="cut",
        method=method,
        placement="sequential",
        recompute=recompute,
        recovered=recovered,
        n=200,
    )


ROWS = (
    measured("reuse", 0.0, 0.0),
    measured("first", 0.05, 0.6),
    measured("first", 0.15, 0.9),
    measured("query", 0.15, None),
    measured("previous", 0.0, 0.97),
    measured("similar", 0.0, -0.4),
    measured("fusionrag", 0.15, 0.85),
    measured("previous, query", 0.3, 0.7),
)
BEFORE = ("a chunk before", None)
SIMILAR = (("one", "two"), None)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (Recompute(0.15, "first"), None),
        (Recompute(0.5, "first"), None),
        (Recompute(0.05, "first"), "'first' at a share of 0.05 brought back 0.60 of the loss"),
        (Recompute(0.14, "first"), "'first' at a share of 0.05 brought back 0.60 of the loss"),
        (Recompute(0.01, "first"), "nothing was measured of 'first' at a share of 0.01 or less"),
        (Recompute(0.15, "query"), None),  # there was no loss
        (Recompute(0.15, "mixed"), "nothing was measured of 'mixed'"),
        (Recompute(select="given", selected=(7,)), "nothing was measured of 'given'"),
        (Recompute(0.15, "first", focus="settle"), "nothing was measured of 'first' with a focus"),
        (Recompute(0.0), "at a share of 0 brought back 0.00"),
        (Recompute(0.15, "first", behind=BEFORE), None),
        (Recompute(0.0, behind=BEFORE), None),
        (Recompute(0.05, behind=SIMILAR), "brought back -0.40"),
        (Recompute(0.3, "first", behind=SIMILAR), "brought back -0.40"),
        (Recompute(0.05, "query", behind=SIMILAR), "at a share of 0 brought back -0.40"),
        (Recompute(0.2, "query", behind=SIMILAR), None),
        (Recompute(0.15, "query", behind=BEFORE), None),
        (Recompute(0.3, "query", behind=BEFORE), "at a share of 0.3 brought back 0.70"),
    ],
)
def test_the_nearest_smaller_share_decides(asked: Recompute, reason: str | None) -> None:
    found = Evidence(ROWS, 0.8).lacks(asked)
    assert found is None if reason is None else found is not None and reason in found


def make_report(number: int, *, recovered: bool, weights: str = "abc") -> dict[str, Any]:
    """A report as `eval chunks --methods` writes it: reuse fails each fourth question."""

    def row(method: str, placement: str, share: float, em: float) -> dict[str, Any]:
        measured = {"em": em, "f1": em, "kl": 1 - em, "computed": 10, "context": 9}
        settings = {"form": "cut", "method": method, "placement": placement, "recompute": share}
        return settings | measured

    lines = [
        {
            "model": "mine",
            "set": name,
            "number": each,
            "rows": [
                row("full", "", 1.0, 1.0),
                row("reuse", "sequential", 0.0, float(each % 4 > 0)),
                row("first", "sequential", 0.15, float(recovered or each % 4 > 0)),
            ],
        }
        for name in ("one", "two")
        for each in range(number // 2)
    ]
    return {"quality": summarise(lines), "weights": {"mine": weights}}


def write(folder: Path, report: Any) -> Path:
    file = folder / "report.json"
    file.write_text(report if isinstance(report, str) else json.dumps(report))
    return file


@pytest.mark.parametrize("recovered", [True, False])
def test_a_report_of_the_command_is_read(tmp_path: Path, recovered: bool) -> None:
    file = write(tmp_path, make_report(MIN_QUESTIONS, recovered=recovered))
    evidence = read_evidence(file, "abc", 0.8)
    reason = evidence.lacks(Recompute(0.15, "first"))
    assert (reason is None) == recovered
    assert evidence.lacks(Recompute(0.0)) is not None


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ("{", "cannot be read as JSON"),
        ([1], "does not say which weights"),
        ({"quality": []}, "does not say which weights"),
        ({"weights": {"mine": "abc"}, "quality": [{"model": "mine"}]}, "and what came out .*set"),
        (make_report(MIN_QUESTIONS, recovered=True, weights="x"), "about other weights"),
        (make_report(MIN_QUESTIONS - 2, recovered=True), "no row of at least 100 questions"),
        ({"weights": {"mine": "abc"}}, "no row of at least 100 questions"),
    ],
)
def test_a_report_that_proves_nothing_is_refused(tmp_path: Path, report: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_evidence(write(tmp_path, report), "abc", 0.8)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_evidence(tmp_path / "nowhere.json", "abc", 0.8)
