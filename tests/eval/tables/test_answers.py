# SPDX-License-Identifier: Apache-2.0
"""`python -m eval tables --answers`: sets, scores, and small readers on a real server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from depcache.tables.seen import SEES
from eval.__main__ import main
from eval.tables.answers import NUM_OF_SCHEMA, SETS, Asked, make_set, request_of, score
from models.tiny.stages import ORDINARY
from tests.eval.tables.made import write_set


@pytest.fixture(scope="module")
def made_up() -> list[Asked]:
    return make_set("made_up", 40)


def test_the_same_questions_come_again_and_gold_is_right(made_up: list[Asked]) -> None:
    again = make_set("made_up", 40)
    assert [each.gold for each in made_up] == [each.gold for each in again]
    assert len({each.gold for each in made_up}) > 30
    golds = [each.gold for each in made_up]
    right = np.ones(40, bool)
    row = score(made_up, golds, right, right)
    assert row["em"] == row["executes"] == row["low"] == row["high"] == 1.0
    assert row["lost"] == row["lost_low"] == row["lost_high"] == 0.0
    assert 5 <= row["schemas"] <= 40 and row["questions"] == 40


def test_intervals_are_over_schemas_and_what_is_lost_is_paired(made_up: list[Asked]) -> None:
    answers = [each.gold if number % 2 else "" for number, each in enumerate(made_up)]
    right = np.arange(40) % 2 == 1
    row = score(made_up, answers, right, np.ones(40, bool))
    assert row["em"] == row["executes"] == 0.5 == row["lost"]
    assert row["low"] < 0.5 < row["high"] and row["lost_low"] < 0.5 < row["lost_high"]
    one = [Asked(each.question, each.catalog, each.databases, 0) for each in made_up]
    assert score(one, answers, right, None)["low"] == 0.5
    joined = [place for place, each in enumerate(made_up) if each.question.num_joins]
    assert row["joined"] == len(joined) >= 10
    assert row["join_em"] == round(float(right[joined].mean()), 4) and 0 < row["join_em"] < 1
    assert sum(row["by_joins"].values()) > 0 and set(row["by_joins"]) <= set("01234")


@pytest.mark.parametrize("name", SETS)
def test_every_set_has_questions_of_its_kind(tmp_path: Path, name: str) -> None:
    write_set(tmp_path, "spider")
    write_set(tmp_path, "bird")
    found = make_set(name, 24, tmp_path)
    assert 0 < len(found) <= 24
    num_tables = {len(each.catalog) for each in found}
    if name == "more_tables":
        assert min(num_tables) >= 13
    if name in ("spider", "bird"):
        assert num_tables <= {2, 4}
    else:
        assert len(found) == 24 and max(num_tables) <= 18
    assert max(np.bincount([each.schema for each in found])) <= NUM_OF_SCHEMA[name]


def test_without_a_folder_there_are_no_real_questions() -> None:
    assert make_set("spider", 10) == []


def test_all_modes_ask_the_same_of_the_same_tables(made_up: list[Asked]) -> None:
    asked = made_up[0]
    messages, extra = request_of(asked, ORDINARY)
    assert extra == {}
    for table in asked.catalog:
        assert table.text in messages[-1]["content"]
    for mode in SEES:
        others, extra = request_of(asked, mode)
        assert sorted(others[-1]["content"]) == sorted(messages[-1]["content"])
        assert others[0] == messages[0] and extra["custom_params"]


@pytest.mark.sglang
def test_small_readers_are_asked_on_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from models.tiny.train_tables import train
    from models.tiny.trainer import Shape

    shape = Shape(vocab_size=512, width=32, layers=1, heads=1, step_tokens=512)
    train(tmp_path / "run", 0.005, 0.005, shape, copy_steps=2, modes=("flat", "references"))
    file = tmp_path / "report.json"
    asked = ["tables", "--answers", "--models", str(tmp_path / "run"), "--json", str(file)]
    assert main([*asked, "--questions", "6", "--sets", "made_up", "more_tables"]) == 0
    rows = json.loads(file.read_text())["quality"]
    found = {(row["model"], row["mode"], row["set"]): row for row in rows}
    assert len(found) == len(rows) == 3 * 5
    for row in rows:
        assert row["questions"] == 6 and 0 <= row["low"] <= row["executes"] <= row["high"] <= 1
        assert ("warm_same" in row) == (row["model"] == row["mode"] != "flat")
    assert found["references", "references", "more_tables"]["warm_same"] == 1.0
    agreement = json.loads(file.read_text())["agreement"]
    assert [row["mode"] for row in agreement][: len(SEES)] == list(SEES)
    assert {row["model"] for row in agreement} == {"references"}
    assert "lost against flat" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "train_tables"),
        (["--models", "/nowhere"], "/nowhere"),
        (["--models", "models/tiny/depcache_tiny", "--questions", "0"], "--questions is 0"),
    ],
)
def test_what_cannot_be_asked(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tables", "--answers", *flags]) == 2
    assert said in capsys.readouterr().err
