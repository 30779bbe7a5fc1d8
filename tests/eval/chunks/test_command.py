# SPDX-License-Identifier: Apache-2.0
"""The command reads its models, goes on from its lines, and says what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from depcache.errors import ConfigError
from eval.__main__ import main
from eval.chunks.bars import judge
from eval.chunks.command import read_models
from eval.chunks.rows import CORE
from tests.helpers.models import make_model


def test_a_word_that_names_no_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="write NAME=DIR"):
        read_models(["control"])
    assert set(read_models(None)) == {"depcache-tiny", "control"}


@pytest.mark.parametrize("words", [[], ["--tokens"]])
def test_a_call_that_asks_for_nothing_is_refused(words: list[str]) -> None:
    assert main(["chunks", *words]) == 2


def test_a_run_goes_on_from_its_lines(tmp_path: Path) -> None:
    folder = make_model("llama_mha", tmp_path / "model")
    lines, out = tmp_path / "lines.jsonl", tmp_path / "out.json"
    words = ["chunks", "--rows", "--lean", "--sets", "demo", "--paths", "1", "--questions", "1"]
    words += ["--models", f"mine={folder}", "--lines", str(lines), "--json", str(out)]
    assert main([*words, "--seconds", "0"]) == 0
    assert json.loads(out.read_text())["untrained_trees"] == []
    rows = [{"form": form, "method": "full", "placement": "", "recompute": 1.0} for form in FORMS]
    rows += [
        {"form": form, "method": "reuse", "placement": "tree", "recompute": 0.0} for form in FORMS
    ]
    measured = {"em": 1.0, "f1": 1.0, "kl": 0.0, "computed": 10, "context": 5}
    line = {"model": "mine", "set": "demo", "number": 0, "commit": None}
    line["rows"] = [row | measured for row in rows]
    lines.write_text(json.dumps(line) + "\n" + '{"cut off')
    assert main(words) == 0
    report = json.loads(out.read_text())
    assert len(report["untrained_trees"]) == len(rows)
    assert report["command"].startswith("python -m eval chunks --rows")


def test_a_core_run_asks_about_whole_paths_alone(tmp_path: Path) -> None:
    folder = make_model("llama_mha", tmp_path / "model")
    out = tmp_path / "out.json"
    words = ["chunks", "--rows", "--core", "--sets", "demo", "--paths", "6", "--questions", "2"]
    assert main([*words, "--models", f"mine={folder}", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["untrained_trees"]
    assert {row["form"] for row in rows} == {"paths"}
    found = {(row["method"], row["placement"], row["recompute"]) for row in rows}
    settings = {
        (method, placement, share) for placement, grid in CORE.items() for share, method in grid
    }
    settings |= {("reuse", placement, 0.0) for placement in CORE}
    assert found == settings | {("full", "", 1.0)}
    computed = {(row["method"], row["recompute"]): row["computed"] for row in rows}
    assert computed["first", 0.05] < computed["first", 0.15] < computed["full", 1.0]


def test_the_table_of_methods_has_the_keys_that_the_bars_read(tmp_path: Path) -> None:
    folder = make_model("llama_mha", tmp_path / "model")
    out = tmp_path / "out.json"
    words = ["chunks", "--methods", "--sets", "demo", "--paths", "4", "--questions", "1"]
    assert main([*words, "--models", f"depcache-tiny={folder}", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["quality"]
    asked = {"model", "set", "method", "recompute", "right", "recovered", "low", "high"}
    assert all(row.keys() >= asked for row in rows)
    bars = judge({"quality": [row | {"set": "all"} for row in rows]})
    assert bars["previous, 0 %"]["value"] is not None
    assert bars["random, 15 %"]["value"] is not None


def test_made_up_worlds_are_a_set_that_is_named(tmp_path: Path) -> None:
    folder = make_model("llama_mha", tmp_path / "model")
    lines, out = tmp_path / "lines.jsonl", tmp_path / "out.json"
    words = ["chunks", "--methods", "--sets", "made_up", "--paths", "10", "--questions", "2"]
    words += ["--models", f"mine={folder}", "--lines", str(lines), "--json", str(out)]
    assert main(words) == 0
    assert [json.loads(text)["world"] for text in lines.read_text().splitlines()] == ["0", "0"]
    rows = json.loads(out.read_text())["quality"]
    assert {(row["set"], row["n"]) for row in rows} == {("made_up", 2)}


FORMS = ("merged", "paths", "triples")
