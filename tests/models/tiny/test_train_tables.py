# SPDX-License-Identifier: Apache-2.0
"""Readers of tables on a very small network: all from one base, each with a mask of its own."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from models.tiny.rows import schema_rows
from models.tiny.stages import TABLE_MODES
from models.tiny.train_tables import main, make_vocabulary

pytestmark = pytest.mark.sglang  # torch and transformers come with the server

FLAGS = ["--minutes", "0.01", "--mode-steps", "2", "--vocab-size", "512", "--width", "32"]
FLAGS += ["--layers", "2", "--heads", "2", "--step-tokens", "1024", "--copy-steps", "2"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_vocabulary(512)


def train(folder: Path, *flags: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setattr("sys.argv", ["train_tables", str(folder), *FLAGS, *flags])
    main()
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_every_mode_begins_from_one_base_and_is_left_as_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    log = train(tmp_path, "--modes", "flat", "references", monkeypatch=monkeypatch)
    ended = [line["stage"] for line in log if "steps" in line]
    assert ended == ["copy", "base", "flat", "references"]
    for name in ("base", "flat", "references"):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        assert model.config.num_hidden_layers == 2
        assert AutoTokenizer.from_pretrained(tmp_path / name).chat_template
    # What is there stays, and the rest is added.
    before = (tmp_path / "base/model.safetensors").read_bytes()
    log = train(tmp_path, monkeypatch=monkeypatch)
    ended = [line["stage"] for line in log if "steps" in line]
    assert ended == ["copy", "base", "flat", "references", "nothing", "component"]
    assert (tmp_path / "base/model.safetensors").read_bytes() == before


def test_a_base_goes_on_from_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    train(tmp_path / "one", "--modes", monkeypatch=monkeypatch)
    start = str(tmp_path / "one/base")
    log = train(tmp_path / "two", "--modes", "--start", start, monkeypatch=monkeypatch)
    assert [line["stage"] for line in log if "steps" in line] == ["base"]
    one, two = (tmp_path / name / "base" for name in ("one", "two"))
    assert (one / "model.safetensors").read_bytes() != (two / "model.safetensors").read_bytes()
    tokenizers = [AutoTokenizer.from_pretrained(each).get_vocab() for each in (one, two)]
    assert tokenizers[0] == tokenizers[1]


@pytest.mark.parametrize("mode", TABLE_MODES)
def test_a_mode_is_trained_with_the_mask_that_it_is_served_with(tokenizer: Any, mode: str) -> None:
    attention = "flat" if mode == "flat" else "dependency"
    sees = "references" if mode == "flat" else mode
    rows = schema_rows(tokenizer, attention, 4, row_tokens=4096, sees=sees)
    found = list(islice(rows, 12))
    has_joins = any(len(row.joins) for row in found)
    sees_less = any((row.ends[: row.task_starts[0]] < row.task_starts[0]).any() for row in found)
    assert sees_less == (mode != "flat")
    # In `component` each table has one above it, so nothing is joined: it is a chain.
    assert has_joins == (mode == "references")


def test_questions_are_the_same_in_every_mode(tokenizer: Any) -> None:
    def learned(mode: str) -> set[int]:
        rows = schema_rows(tokenizer, "dependency", 4, row_tokens=100_000, sees=mode)
        row = next(rows)
        return {int(token) for token in row.labels} | {int((row.labels != -100).sum())}

    assert learned("nothing") == learned("references") == learned("component")
