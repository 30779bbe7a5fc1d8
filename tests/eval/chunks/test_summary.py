# SPDX-License-Identifier: Apache-2.0
"""The table of methods from lines that were written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from eval.chunks.summary import summarise


def line(number: int, **right: float) -> dict[str, Any]:
    """One question of form `paths`: exact match of full attention, reuse and `first` at 15 %."""
    places = {
        "full": ("full", "", 1.0, 100),
        "reuse": ("reuse", "sequential", 0.0, 10),
        "first": ("first", "sequential", 0.15, 25),
    }
    rows = []
    for name, em in right.items():
        method, placement, share, computed = places[name]
        row = {"form": "paths", "method": method, "placement": placement, "recompute": share}
        rows.append(row | {"em": em, "f1": em, "kl": 0.5, "computed": computed, "context": 80})
    return {"model": "m", "set": "s", "number": number, "rows": rows}


def test_the_share_that_is_recovered() -> None:
    lines = [line(n, full=1.0, reuse=float(n < 4), first=float(n < 7)) for n in range(10)]
    full, reuse, first = summarise(lines)
    assert (full["right"], reuse["right"], first["right"]) == (1.0, 0.4, 0.7)
    assert first["recovered"] == pytest.approx(0.5)
    assert first["low"] < 0.5 < first["high"]
    assert reuse["recovered"] == 0.0 and full["recovered"] is None
    assert first["lost"] == pytest.approx(0.3) and full["lost_95"] == [0.0, 0.0]
    assert first["computed_share"] == 0.25 and first["n"] == 10


def test_without_a_gap_nothing_is_recovered() -> None:
    lines = [line(n, full=1.0, reuse=1.0, first=0.0) for n in range(10)]
    assert all(row["recovered"] is None for row in summarise(lines))


def test_a_question_without_context_counts_everywhere() -> None:
    lines = [line(0, full=1.0, reuse=0.0, first=0.0), line(1, full=1.0)]
    _, reuse, _ = summarise(lines)
    assert reuse["right"] == 0.5


def test_rows_that_not_all_questions_have_are_left_out() -> None:
    lines = [line(0, full=1.0, reuse=0.0, first=0.0), line(1, full=1.0, reuse=0.0)]
    assert [row["method"] for row in summarise(lines)] == ["full", "reuse"]


def test_all_sets_of_a_model_are_summed_up_too() -> None:
    one, two = line(0, full=1.0, reuse=0.0), line(0, full=1.0, reuse=1.0) | {"set": "t"}
    table = summarise([one, two])
    assert [row["set"] for row in table] == ["s", "s", "t", "t", "all", "all"]
    assert (table[-1]["right"], table[-1]["n"]) == (0.5, 2)


def test_intervals_are_over_worlds() -> None:
    # Ten questions of one world that all come out alike tell no more than one of them.
    lines = [line(n, full=1.0, reuse=float(n % 20 < 10)) for n in range(40)]
    single = summarise(lines)[1]["right_95"]
    in_worlds = [each | {"world": str(each["number"] // 10)} for each in lines]
    wide = summarise(in_worlds)[1]
    assert wide["right"] == 0.5
    assert wide["right_95"] == [0.0, 1.0]
    assert single[0] > 0.3 and single[1] < 0.7


def test_a_world_counts_by_its_questions() -> None:
    lines = [line(n, full=1.0, reuse=float(n == 0)) for n in range(5)]
    worlds = [each | {"world": "one" if each["number"] == 0 else "other"} for each in lines]
    reuse = summarise(worlds)[1]
    assert (reuse["right"], reuse["right_95"]) == (0.2, [0.0, 1.0])
