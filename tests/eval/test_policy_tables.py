# SPDX-License-Identifier: Apache-2.0
"""Streams of tables in the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from depcache.serving.tiny import TINY_NAME, resolve_model
from eval.policy.prepared import read_prepared
from eval.policy.workloads import PolicySpec, Source
from eval.sets import SetError
from tests.eval.tables.made import write_set


def test_each_question_is_a_prompt_of_its_tables(tmp_path: Path) -> None:
    write_set(tmp_path, "spider")
    source = Source(tmp_path / "none.tsv", None, tmp_path / "cache", tmp_path)
    prepared = read_prepared(source.prepare(PolicySpec("whole:spider", 0, 2)))
    assert len(prepared.tables()) == 2
    assert prepared.working_set > 0


def test_without_a_folder_of_schemas_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetError, match="needs the folder of the schemas"):
        Source(tmp_path / "none.tsv", None, tmp_path).prepare(PolicySpec("whole:bird", 0, 2))


def test_the_tokens_of_a_model_can_be_counted(tmp_path: Path) -> None:
    write_set(tmp_path, "spider")
    model = Path(resolve_model(TINY_NAME))
    spec = PolicySpec("whole:spider", 0, 2)
    own = Source(tmp_path / "none.tsv", None, tmp_path / "cache", tmp_path)
    named = Source(tmp_path / "none.tsv", None, tmp_path / "cache", tmp_path, model)
    file = named.prepare(spec)
    assert file != own.prepare(spec), "two tokenizers shared a prepared file"
    prepared = read_prepared(file)
    read = AutoTokenizer.from_pretrained(model)
    text = read.decode(prepared.tokens[: prepared.token_indptr[1]])
    assert "CREATE TABLE" in text
