# SPDX-License-Identifier: Apache-2.0
"""From the lines of questions to the table of methods, with intervals over questions or worlds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.quality.scores import NUM_RESAMPLES

MIN_GAP = 0.05
"""Full attention must be so much better than reuse before a share of the gap means anything."""

ALL = "all"
"""The set of all questions of a model, each counting once."""

MIN_KL = 0.001
"""Less than this in the mean is noise."""

Key = tuple[str, str, str, float]
"""Form, method, placement and share."""

Values = NDArray[np.float64]
Means = Callable[[Values], Values]
"""Means of values of the questions, one for each time that these were drawn anew."""


def summarise(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each model, set and method, and for all sets of a model together.

    lines  as `eval.chunks.rows` writes them; a question without context counts in every row

    right            exact match, 0 to 1, with `right_95`
    recovered        (right - reuse) / (full - reuse) of the same form and placement, with `low`
                     and `high`; None unless full is 5 points better, with an interval above 0
    lost             `right` of full attention over whole paths (over the cut text where it is cut)
                     less this one, with `lost_95`
    kl               against full attention of the same form
    computed_share   tokens of the second pass by tokens of the whole prompt
    gone             share of the kl of reuse of the same form and placement that is gone, with
                     `gone_95`; None where reuse has none
    All intervals are of 95 %, by bootstrap over the same questions; where lines have a `world`,
    over worlds, as questions of one have much in common. A line without one is a world by itself.
    """
    cases: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in sorted(lines, key=lambda line: line["number"]):
        cases.setdefault((line["model"], line["set"]), []).append(line)
    together: dict[str, list[list[dict[str, Any]]]] = {}
    for (model, _), mine in cases.items():
        together.setdefault(model, []).append(mine)
    for model, sets in together.items():
        if len(sets) > 1:
            cases[model, ALL] = [line for mine in sets for line in mine]
    return [
        {"model": model, "set": name, **row}
        for (model, name), mine in cases.items()
        for row in _summarise_set(mine)
    ]


def _summarise_set(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    of_questions = [
        {(row["form"], row["method"], row["placement"], row["recompute"]): row for row in rows}
        for rows in (line["rows"] for line in lines)
    ]
    # Questions that a lean run asked have fewer rows; those without context have full ones alone.
    reusing = [rows for rows in of_questions if any(placement for _, _, placement, _ in rows)]
    fewest = min(reusing or of_questions, key=len)
    keys = [key for key in fewest if all(key in rows for rows in reusing)]
    means = _resample([line.get("world", f"of question {n}") for n, line in enumerate(lines)])

    def values(key: Key, measure: str) -> Values:
        full = key[0], "full", "", 1.0
        return np.array([rows.get(key, rows[full])[measure] for rows in of_questions], float)

    forms = {form for form, *_ in keys}
    flat = values(("paths" if "paths" in forms else min(forms), "full", "", 1.0), "em")
    table: list[dict[str, Any]] = []
    for key in keys:
        form, method, placement, share = key
        right = values(key, "em")
        row: dict[str, Any] = {
            "form": form,
            "method": method,
            "placement": placement,
            "recompute": share,
            "n": len(lines),
            "right": _round(right.mean()),
            "right_95": _interval(means(right)),
            "lost": _round(flat.mean() - right.mean()),
            "lost_95": _interval(means(flat - right)),
            "f1": _round(values(key, "f1").mean()),
            "kl": _round(values(key, "kl").mean()),
        }
        computed, context = values(key, "computed"), values(key, "context")
        whole = values((form, "full", "", 1.0), "computed")
        row["computed"] = _round(computed.mean())
        row["context"] = _round(context.mean())
        row["computed_share"] = _round(computed.sum() / whole.sum())
        full, reuse = values((form, "full", "", 1.0), "em"), None
        if placement:
            reuse = values((form, "reuse", placement, 0.0), "em")
        row |= _recovered(right, full, reuse, means)
        if placement:
            row |= _gone(values(key, "kl"), values((form, "reuse", placement, 0.0), "kl"), means)
        table.append(row)
    return table


def _resample(worlds: Sequence[str]) -> Means:
    """Draw as many worlds as there are, again and again, each with all its questions."""
    _, of_question = np.unique(worlds, return_inverse=True)
    num = int(of_question.max()) + 1
    drawn = np.random.default_rng(0).integers(0, num, (NUM_RESAMPLES, num))
    times = np.stack([np.bincount(row, minlength=num) for row in drawn])
    times = times[:, of_question].astype(np.float64)
    return lambda values: times @ values / times.sum(1)


def _recovered(right: Values, full: Values, reuse: Values | None, means: Means) -> dict[str, Any]:
    nothing = {"recovered": None, "low": None, "high": None}
    if reuse is None:
        return nothing
    gaps = means(full - reuse)
    gap = (full - reuse).mean()
    if gap < MIN_GAP or np.percentile(gaps, 2.5) <= 0:
        return nothing
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = means(right - reuse) / gaps
    low, high = _interval(shares[np.isfinite(shares)])
    return {"recovered": _round((right - reuse).mean() / gap), "low": low, "high": high}


def _gone(kl: Values, reuse: Values, means: Means) -> dict[str, Any]:
    if reuse.mean() < MIN_KL:
        return {"gone": None, "gone_95": None}
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = 1 - means(kl) / means(reuse)
    found = _interval(shares[np.isfinite(shares)])
    return {"gone": _round(1 - kl.mean() / reuse.mean()), "gone_95": found}


def _interval(means: Values) -> list[float]:
    low, high = np.percentile(means, [2.5, 97.5])
    return [_round(low), _round(high)]


def _round(value: Any) -> float:
    return round(float(value), 4)
