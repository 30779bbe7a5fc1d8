# SPDX-License-Identifier: Apache-2.0
"""`depcache finetune`: from a graph and questions to a model, and what is said on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from depcache.training.examples import read_examples

pytestmark = pytest.mark.sglang

pytest.importorskip("accelerate")
pytest.importorskip("peft")

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def questions(tmp_path: Path) -> dict[str, Path]:
    graph, file = tmp_path / "facts.tsv", tmp_path / "questions.jsonl"
    names = [f"Town {chr(65 + i)}" for i in range(6)]
    graph.write_text("".join(f"{a}\tnorth of\t{b}\n" for a in names for b in names if a < b))
    rows: list[dict[str, Any]] = [
        {"question": f"What is {name} north of?", "answers": names[i + 1 :]}
        for i, name in enumerate(names[:-1])
    ]
    rows.append({"question": "Where is it?", "answer": "Unknown.", "entities": ["Town B"]})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"graph": graph, "questions": file, "data": tmp_path / "train.jsonl"}


def test_a_graph_and_questions_make_a_model(
    call: Call, questions: dict[str, Path], model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    make = ("finetune", "data", "--questions", questions["questions"], "--out", questions["data"])
    code, out, err = call(*make, "--graph", questions["graph"], "--pruner", "none", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["examples"] == 6
    examples = list(read_examples(questions["data"]))
    assert examples[0].answer == "Town B"
    assert examples[0].alternatives == ("Town C", "Town D", "Town E", "Town F")
    assert examples[-1].alternatives == ()
    assert ("Town A", "north of", "Town B") in {path[:3] for path in examples[0].paths}
    assert {path[0] for path in examples[-1].paths} == {"Town B"}

    train = ("finetune", "run", model_path("llama_mild"), "--data", questions["data"])
    options = ("--max-steps", "2", "--layout", "tree", "--layout", "staggered")
    code, out, _ = call(*train, "--out", tmp_path / "out", *options)
    assert code == 0
    assert out.split()[:2] == ["examples", "6"]
    assert "depcache serve" in out
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_wrong_calls_are_one_sentence_and_exit_code_2(
    call: Call, questions: dict[str, Path], model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    model, out = model_path("llama_mild"), ("--out", tmp_path / "out")
    questions["data"].write_text('{"question": "a", "answer": "b"}\n{"question": 1}\n')
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "a"}\n')
    data = ("--questions", bad, "--graph", questions["graph"], "--pruner", "none")
    some = tmp_path / "some.jsonl"
    some.write_text('{"question": "a", "answers": ["b", 3]}\n')
    half = ("--questions", some, *data[2:])
    for arguments, word in (
        (("data", *half, "--out", tmp_path / "x.jsonl"), "'answer' is 3"),
        (("run", model, "--data", questions["data"], *out), "line 2"),
        (("run", model, "--data", tmp_path / "none.jsonl", *out), "cannot read"),
        (("run", model, "--data", bad, *out, "--layout", "round"), "round"),
        (("data", *data, "--out", tmp_path / "x.jsonl"), "'answer'"),
    ):
        code, stdout, err = call("finetune", *arguments)
        assert code == 2, err
        assert word in err and len(err.strip().splitlines()) <= 3
        assert not stdout.strip()
    assert not (tmp_path / "x.jsonl").exists()
