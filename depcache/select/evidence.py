# SPDX-License-Identifier: Apache-2.0
"""Whether fusing was measured with this very model, and how much of the loss it brought back.

The report of `python -m eval chunks --json FILE` is the evidence. Each of its rows says what share
of the gap between full reuse and full attention a selector recovers, over how many questions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from depcache.errors import ConfigError, explain_validation
from depcache.prompt.recompute import Recompute, parts_of

MIN_QUESTIONS = 100
"""Fewer questions say nothing: one answer of fifty is two points."""

DEFAULT_RECOVERY = 0.8
"""The share of the gap that must come back, unless the server is told another one."""

_BEHIND = {("previous", "query"): "previous, query", ("similar", "query"): "fusionrag"}
"""What a report calls a selector behind other chunks. Of the others no share was measured there."""

_FORMS = ("cut", "paths")  # cut text and whole paths: what a fused request holds


class Measured(BaseModel, frozen=True):
    """One row of a report, of which this is what counts here.

    method     a selector; `reuse`, `previous` or `similar` where nothing is computed again
    recompute  the share that was
    recovered  the share of the gap that came back; None where there was no gap to speak of
    n          questions
    """

    model: str
    set: str
    form: str
    method: str
    placement: str
    recompute: float
    recovered: float | None
    n: int


class _Report(BaseModel):
    """What `python -m eval chunks` writes, as far as it counts here; either table may be missing.

    weights  name of a model -> digest of its weight files
    """

    weights: dict[str, str]
    quality: list[Measured] = Field(default_factory=list[Measured])
    untrained_trees: list[Measured] = Field(default_factory=list[Measured])


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
        if recompute.focus is not None:
            return f"nothing was measured of {recompute.select!r} with a focus"
        methods = _methods_of(recompute)
        known = [
            row
            for row in self.rows
            if row.method in methods and row.recompute <= recompute.share + 1e-9
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


def _methods_of(recompute: Recompute) -> list[str]:
    """What a report calls it; behind other chunks also the same with nothing computed again."""
    num_behind = {len(parts_of(entry)) for entry in recompute.behind or ()} - {0}
    if not num_behind:
        return [recompute.select if recompute.share else "reuse"]
    source = "previous" if num_behind == {1} else "similar"
    measured = _BEHIND.get((source, recompute.select))
    return [source] if measured is None else [source, measured]


def read_evidence(file: Path, weights: str, least: float) -> Evidence:
    """The rows of a report that were measured with a model of these weights.

    weights  as the report has them: the digest of the model's weight files
    least    see `Evidence`

    Raises ConfigError when the file is no such report, or has nothing of this model.
    """
    give = "give the report of python -m eval chunks --methods --json FILE"
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"fused_evidence: {str(file)!r} cannot be read as JSON ({error}); {give}"
        ) from error
    try:
        report = _Report.model_validate(data)
    except ValidationError as error:
        raise ConfigError(
            f"fused_evidence: {str(file)!r} does not say which weights it is about, and what came "
            f"out ({explain_validation(error)}); {give}"
        ) from error
    names = {name for name, digest in report.weights.items() if digest == weights}
    if not names:
        raise ConfigError(
            f"fused_evidence: {str(file)!r} is about other weights than this model's "
            f"({weights[:12]}...); run python -m eval chunks --methods --models NAME=DIR with it"
        )
    rows: list[Measured] = []
    for table in (report.quality, report.untrained_trees):
        mine = [row for row in table if row.model in names]
        # All sets together where there are several, which is in the report too.
        rows += [row for row in mine if row.set == "all"] or mine
    usable = tuple(
        row
        for row in rows
        if row.form in _FORMS and row.placement == "sequential" and row.n >= MIN_QUESTIONS
    )
    if not usable:
        raise ConfigError(
            f"fused_evidence: {str(file)!r} has no row of at least {MIN_QUESTIONS} questions for "
            "this model; ask more with --questions"
        )
    return Evidence(usable, least)
