# SPDX-License-Identifier: Apache-2.0
"""The report of `python -m eval retrieval` on a small folder, and its figures by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("ahocorasick", reason="needs the extra `graph`")
pytest.importorskip("tokenizers", reason="needs the extra `server`")

import random

from eval.__main__ import main
from eval.retrieval import TUNING_SAMPLES, TUNING_SEED, draw_questions
from eval.sets import Question

QUESTIONS = [
    {"question": "Where was Ann born?", "answers": ["OSLO"], "entities": ["Ann"]},
    {"question": "Where is the town Ann was born in?", "answers": ["Norway"], "entities": ["Ann"]},
    {"question": "Who is Bob?", "answers": ["nobody knows"], "entities": ["Bob"]},
    {"question": "Who is Kim Doe?", "answers": ["Oslo", "x"], "entities": ["Kim Doe"]},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small = tmp_path / "kg" / "small"
    small.mkdir(parents=True)
    (small / "triples.tsv").write_text("Ann\tborn in\tOslo\nOslo\tis in\tNorway\nBob\tis\tAnn\n")
    (small / "questions.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    labels = tmp_path / "kg" / "labels"
    labels.mkdir()
    (labels / "triples.tsv").write_text("Ann\tis\tyes\n")
    (labels / "questions.jsonl").write_text(json.dumps({"question": "Ann?", "answers": ["yes"]}))
    return tmp_path / "kg"


def test_rows_hold_recall_times_and_tokens(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ["retrieval", "--data", str(folder), "--json", str(out)]
    arguments += ["--store", "networkx", "--pruners", "none", "words", "--hops", "1", "2"]
    assert main(arguments) == 0
    report = json.loads(out.read_text())
    assert report["left_out"] == ["set labels: its 1 answers are labels"]
    rows = {(row["hops"], row["pruning"]): row for row in report["rows"]}
    assert set(rows) == {(1, "none"), (1, "words"), (2, "none"), (2, "words")}
    # One hop reaches Oslo; two reach Norway. "nobody knows" is no entity, Kim Doe is unknown.
    assert rows[1, "none"]["recall"] == 0.25
    assert rows[2, "none"]["recall"] == rows[2, "none"]["ceiling"] == 0.5
    assert rows[2, "none"]["linked"] == 0.75
    for row in rows.values():
        assert row["set"] == "small" and row["questions"] == 4 and row["seen_in_tuning"] == 2
        assert 0 < row["tree_tokens"] <= row["flat_tokens"]
        assert row["ms_median"] >= 0 and row["ms_again"] >= 0
    words = "python -m eval retrieval --data PATH --json PATH --store networkx --pruners none words"
    assert report["command"] == f"{words} --hops 1 2"
    assert str(tmp_path) not in out.read_text()
    assert [load["triples"] for load in report["loads"]] == [3]
    assert rows[2, "none"]["tree_tokens"] < rows[2, "none"]["flat_tokens"]


def test_wrong_data_is_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["retrieval", "--data", str(tmp_path / "nowhere")]) == 2
    assert "no folder" in capsys.readouterr().err


def test_no_sample_holds_a_question_that_pruning_was_tuned_on() -> None:
    for size in (3, 150, 1000, 5000):
        questions = [Question(str(number), f"{number}?", ("x",)) for number in range(size)]
        tuned = {
            question
            for count in TUNING_SAMPLES
            for question in random.Random(TUNING_SEED).sample(questions, min(count, size // 2))
        }
        for seed in (1, 2):
            drawn = draw_questions(questions, size // 3, seed)
            assert len(set(drawn)) == len(drawn) == size // 3
            assert not tuned & set(drawn)
            assert drawn == draw_questions(questions, size // 3, seed)
        for whole in (0, size, size + 1):
            assert draw_questions(questions, whole, 1) == questions
    assert draw_questions(questions, 200, 1) != draw_questions(questions, 200, 2)
    assert tuned & set(draw_questions(questions, 200, TUNING_SEED))
