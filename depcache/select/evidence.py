# SPDX-License-Identifier: Apache-2.0
"""Whether fusing was measured with this very model, and how much of the loss it brought back.

The report of `python -m eval chunks --json FILE` is the evidence. Each of its rows says what share
of the gap between full reuse and full attention a selector recovers, over how many questions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depcache.errors import ConfigError
from depcache.prompt.recompute import Recompute, parts_of

MIN_QUESTIONS = 100
"""Fewer questions say nothing: one answer of fifty is two points."""

TABLES = ("quality", "untrained_trees")
"""The tables of a report that have such rows."""

_FORMS = ("cut", "paths")  # cut text and whole paths: what a fused request holds


@dataclass(frozen=True, slots=True)
class Measured:
    """One row of a report.

    method     a selector; `reuse`, `previous` or `similar` where nothing is computed again
    recompute  the share that was
    recovered  the share of the gap that came back; None where there was no gap to speak of
    """

    method: str
    recompute: float
    recovered: float | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was measured with one model.

    rows   of all sets and forms
    least  the share of the gap that must come back, 0 to 1
    """

    rows: tuple[Measured, ...]
    least: float

    def lacks(self, recompute: Recompute) -> str | None:
        """Why a fused request is not to be served as such; None where it is.

        The rows of its selector with the largest share that is not above its own count, and of
        these the worst. Nothing speaks for indices that the caller chose.
        """
        method = _method_of(recompute)
        known = [
            row
            for row in self.rows
            if row.method == method and row.recompute <= recompute.share + 1e-9
        ]
        if not known:
            return (
                f"nothing was measured of {recompute.select!r} at a share of {recompute.share:g} "
                "or less"
            )
        share = max(row.recompute for row in known)
        found = [row.recovered for row in known if row.recompute == share]
        worst = min((each for each in found if each is not None), default=None)
        if worst is None or worst >= self.least:
            return None
        return (
            f"{recompute.select!r} at a share of {share:g} brought back {worst:.2f} of the loss, "
            f"less than {self.least:g}"
        )


def _method_of(recompute: Recompute) -> str:
    """What a report calls it. Behind other chunks no share was measured, so it is that of none."""
    num_behind = {len(parts_of(entry)) for entry in recompute.behind or ()} - {0}
    if num_behind:
        return "previous" if num_behind == {1} else "similar"
    return recompute.select if recompute.share else "reuse"


def read_evidence(file: Path, weights: str, least: float) -> Evidence:
    """The rows of a report that were measured with a model of these weights.

    weights  as the report has them: the digest of the model's weight files
    least    see `Evidence`

    Raises ConfigError when the file is no such report, or has nothing of this model.
    """
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"fused_evidence: {str(file)!r} cannot be read as JSON ({error}); give the report of "
            "python -m eval chunks --methods --json FILE"
        ) from error
    known = report.get("weights") if isinstance(report, dict) else None
    if not isinstance(known, dict):
        raise ConfigError(
            f"fused_evidence: {str(file)!r} does not say which weights it is about; give the "
            "report of python -m eval chunks --methods --json FILE"
        )
    names = {name for name, digest in known.items() if digest == weights}
    if not names:
        raise ConfigError(
            f"fused_evidence: {str(file)!r} is about other weights than this model's "
            f"({weights[:12]}...); run python -m eval chunks --methods --models NAME=DIR with it"
        )
    rows = tuple(_measured(row) for row in _rows_of(report, names))
    if not rows:
        raise ConfigError(
            f"fused_evidence: {str(file)!r} has no row of at least {MIN_QUESTIONS} questions for "
            "this model; ask more with --questions"
        )
    return Evidence(rows, least)


def _rows_of(report: dict[str, Any], names: set[str]) -> list[dict[str, Any]]:
    """Those that fused requests can be compared with, of all sets together where they are."""
    found: list[dict[str, Any]] = []
    for table in TABLES:
        mine = [row for row in report.get(table) or () if row["model"] in names]
        together = [row for row in mine if row["set"] == "all"]
        found += [
            row
            for row in together or mine
            if row["form"] in _FORMS
            and row["placement"] == "sequential"
            and row["n"] >= MIN_QUESTIONS
        ]
    return found


def _measured(row: dict[str, Any]) -> Measured:
    return Measured(row["method"], row["recompute"], row["recovered"])
