# SPDX-License-Identifier: Apache-2.0
"""What agents ask about the same tables, counted by hand on a small set."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from eval.tables import agents
from eval.tables.agents import INSTRUCTIONS, calls_of, simulate_agents
from eval.tables.sets import SqlSet, read_sql_set
from eval.tables.simulate import SYSTEMS, TASK_WORDS_TOKENS
from tests.eval.tables.made import write_set


@pytest.fixture
def open_set(tmp_path: Path) -> Callable[[str], SqlSet]:
    for name in ("spider", "bird"):
        write_set(tmp_path, name)
    return lambda name: read_sql_set(tmp_path, name)


@pytest.mark.parametrize("name", ["whole:bird", "lake:sql:4"])
def test_a_query_is_written_and_repaired_over_some_of_the_candidates(open_set, name: str) -> None:
    data = open_set(name.split(":")[1])
    for question in data.questions:
        open_calls = calls_of(data, question, name, random.Random(0))
        assert list(open_calls) == list(INSTRUCTIONS)
        assert set(question.gold) <= set(open_calls["write"]) <= set(open_calls["link"])
        assert open_calls["write"] == open_calls["repair"]
        closed = calls_of(data, question, f"{name}:closed", random.Random(0))
        for kind, tables in closed.items():
            assert set(tables) == set(data.catalog.references.closure(open_calls[kind]))


def test_each_kind_of_call_computes_its_tables_unless_they_stand_in_front(
    open_set, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "FORMS", ("whole:bird", "whole:bird:closed"))
    rows = {row["set"]: row for row in simulate_agents(open_set, lambda text: 100, quick=True)}
    told, task = 100 * len(INSTRUCTIONS), len(INSTRUCTIONS) * (100 + TASK_WORDS_TOKENS)
    closed = rows["whole:bird:closed"]
    assert closed["instructions"] == told and closed["calls"] == 3
    first, behind = closed["instructions_first"], closed["tables_first"]
    # Six tables, each computed once in all four questions; with instructions in front again for
    # each kind of call, in which keepers and perhaps others are candidates alone.
    assert behind["references"] == behind["alone"] == 600 / 4 + task + told
    assert behind["references"] - told < first["references"] <= 3 * 600 / 4 + task
    for row in rows.values():
        assert tuple(row["tables_first"]) == SYSTEMS
        for system in SYSTEMS:
            # What is the same for fewer kinds of calls is never computed more often.
            if system != "as they come":
                shared = row["tables_first"][system] - told
                assert shared <= row["instructions_first"][system] + 0.1
            assert row["tables_first"][system] >= row["tables_first"]["ahead"] == task + told
