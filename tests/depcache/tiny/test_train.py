# SPDX-License-Identifier: Apache-2.0
"""The training script on a very small network: it learns, and leaves models that can be loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from depcache.tiny.train import (
    Shape,
    Trainer,
    copy_rows,
    make_network,
    make_vocabulary,
    question_rows,
    train,
)
from depcache.training.samples import IGNORED

pytestmark = pytest.mark.sglang  # torch and transformers come with the server

SMALL = Shape(vocab_size=512, width=32, layers=2, heads=2, row_tokens=2048, rows=1)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_vocabulary(SMALL)


def test_twenty_steps_lower_the_loss_on_a_fixed_batch(tokenizer: Any, tmp_path: Path) -> None:
    shape = replace(SMALL, learning_rate=0.03)  # the rate is still rising after twenty steps
    row = next(question_rows(shape, tokenizer, "dependency", 1))
    trainer = Trainer(make_network(shape), shape, tmp_path / "log.jsonl")
    before = trainer._loss([row]).item()
    trainer.run("dependency", iter(list(repeat(row, 20))), 1e9, [row])
    assert trainer._loss([row]).item() < 0.9 * before
    [noted, end] = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert (noted["step"], end["steps"]) == (20, 20)
    assert 0 <= end["whole"] <= end["token_accuracy"] <= 1


def test_rows_are_full_and_of_new_worlds(tokenizer: Any) -> None:
    rows = list(islice(question_rows(SMALL, tokenizer, "dependency", 1), 12))
    assert all(len(row) <= SMALL.row_tokens for row in rows)
    assert sum(map(len, rows)) > 0.7 * 12 * SMALL.row_tokens
    texts = {tokenizer.decode(row.tokens) for row in rows}
    assert len(texts) == 12
    flat = next(question_rows(SMALL, tokenizer, "flat", 1))
    answers = [t for t in flat.labels.tolist() if t != IGNORED]
    assert "Answer: " in tokenizer.decode(answers)
    copied = next(copy_rows(SMALL, np.random.default_rng(0)))
    learned = copied.labels != IGNORED
    assert 0.4 < learned.mean() < 0.6
    assert len(copied) <= SMALL.row_tokens


def test_accuracy_counts_answers_that_are_right_to_the_last_token(
    tokenizer: Any, tmp_path: Path
) -> None:
    row = next(question_rows(SMALL, tokenizer, "dependency", 2))

    class Oracle:
        """Knows the next token, but for one answer."""

        def __init__(self) -> None:
            self.config = make_network(SMALL).config
            self.config._attn_implementation = "sdpa"

        def eval(self) -> None: ...

        def train(self) -> None: ...

        def __call__(self, input_ids: Any, **_: Any) -> Any:
            import torch

            right = torch.nn.functional.one_hot(input_ids.roll(-1, 1), SMALL.vocab_size)
            first = int(np.flatnonzero(row.labels != IGNORED)[0])
            right[0, first - 1] = 0
            right[0, first - 1, 1] = 1
            return type("Output", (), {"logits": right.float()})()

    accuracy, whole = Trainer(Oracle(), SMALL, tmp_path / "log.jsonl").accuracy([row])
    num_answers = int((row.labels == tokenizer.eos_token_id).sum())
    num_tokens = int((row.labels != IGNORED).sum())
    assert accuracy == pytest.approx(1 - 1 / num_tokens, abs=1e-3)
    assert whole == pytest.approx(1 - 1 / num_answers, abs=1e-3)


def test_all_stages_leave_models_that_can_be_loaded(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    train(tmp_path, 0.02, SMALL)
    for folder in ("base", "model"):
        network = AutoModelForCausalLM.from_pretrained(tmp_path / folder)
        assert network.config.hidden_size == 32
        assert AutoTokenizer.from_pretrained(tmp_path / folder).chat_template
    ends = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [e["stage"] for e in ends if "whole" in e] == ["copy", "base", "dependency"]
