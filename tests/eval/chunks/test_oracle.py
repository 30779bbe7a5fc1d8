# SPDX-License-Identifier: Apache-2.0
"""The oracle of two passes against plain HuggingFace, a dense mask, and itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from eval.chunks.oracle import Choice, Question
from eval.chunks.reader import Reader
from eval.chunks.selectors import SELECTORS, Selectors, num_chosen
from eval.chunks.written import Form, Writer, Written
from eval.quality.prompts import Asked
from tests.helpers.models import make_model

ASKED = Asked(
    "Where was the founder of SpaceX born?",
    ("Pretoria",),
    (
        ("Elon Musk", "founded", "SpaceX"),
        ("Elon Musk", "born in", "Pretoria", "located in", "South Africa"),
        ("Pretoria", "located in", "South Africa"),
    ),
)
FORMS: tuple[Form, ...] = ("merged", "paths", "triples", "cut")
NOTHING = Choice(np.empty(0, np.int64))
MAX_TOKENS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama_gqa", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reader(folder: Path) -> Reader:
    return Reader(folder)


@pytest.fixture(scope="module")
def stock(folder: Path):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def write(reader: Reader, form: Form) -> Written:
    return Writer(reader.tokenizer, cut_len=8).write(ASKED, form)


@torch.no_grad()
def logits_of(stock, written: Written, answer: list[int], mask: np.ndarray, positions: np.ndarray):
    """What stock HuggingFace says at the answer's places, with this mask and these positions."""
    num, more = len(written.tokens), len(answer) - 1
    tokens = np.concatenate((written.tokens, answer[:-1])).astype(np.int64)
    visible = np.tri(num + more, dtype=bool)
    visible[:num, :num] &= mask
    positions = np.concatenate((positions, positions[-1] + 1 + np.arange(more)))
    hidden = torch.zeros(visible.shape).masked_fill(
        torch.from_numpy(~visible), torch.finfo(torch.float32).min
    )
    found = stock(
        input_ids=torch.from_numpy(tokens)[None],
        position_ids=torch.from_numpy(positions)[None],
        attention_mask=hidden[None, None],
    )
    return found.logits[0, num - 1 :]


@pytest.mark.parametrize("form", FORMS)
def test_all_computed_again_is_full_attention(reader: Reader, stock, form: Form) -> None:
    written = write(reader, form)
    question = Question(reader, written, MAX_TOKENS)
    everything = Choice(written.context)
    [answer] = question.answer_all(question.alone, "sequential", [everything])
    num = len(written.tokens)
    mask, positions = np.ones((num, num), bool), np.arange(num)
    expected = logits_of(stock, written, question.full.tokens, mask, positions)
    torch.testing.assert_close(answer.logits, expected, rtol=0, atol=1e-4)
    assert answer.tokens == question.full.tokens == expected.argmax(-1).tolist()
    assert answer.kl == pytest.approx(0, abs=1e-5)
    assert answer.computed == num - written.forest.system_len


@pytest.mark.parametrize("form", FORMS)
def test_nothing_computed_again_is_the_mask_of_ancestors(reader: Reader, stock, form: Form) -> None:
    written = write(reader, form)
    question = Question(reader, written, MAX_TOKENS)
    [answer] = question.answer_all(question.alone, "tree", [NOTHING])
    draft = question.full.tokens
    expected = logits_of(stock, written, draft, written.ancestors(), written.home)
    torch.testing.assert_close(answer.logits, expected, rtol=0, atol=1e-4)


def test_turned_keys_are_those_computed_at_the_place(reader: Reader) -> None:
    written = write(reader, "paths")
    question = Question(reader, written, MAX_TOKENS)
    by = np.full(len(question.alone.home), 5)
    stop = written.forest.task_start
    visible = written.ancestors()[None, :stop, :stop]
    moved = reader.run(written.tokens[None, :stop], (question.alone.home + by)[None], visible)
    for (keys, _), (expected, _) in zip(reader.turn(question.alone.kv, by), moved.kv, strict=True):
        torch.testing.assert_close(keys, expected[0], rtol=0, atol=1e-4)


def test_keys_that_are_not_turned_give_another_answer(reader: Reader) -> None:
    question = Question(reader, write(reader, "paths"), MAX_TOKENS)
    [mended] = question.answer_all(question.alone, "sequential", [NOTHING])
    [not_mended] = question.answer_all(question.alone, "not mended", [NOTHING])
    assert (mended.logits - not_mended.logits).abs().max() > 1e-2


def test_a_batch_answers_as_each_alone(reader: Reader) -> None:
    written = write(reader, "paths")
    question = Question(reader, written, MAX_TOKENS)
    selectors = Selectors(question)
    choices = [
        Choice(selectors.choose(selector, share, "sequential"))
        for share in (0.1, 0.3)
        for selector in SELECTORS
    ]
    choices += [NOTHING, Choice(NOTHING.chosen, 0.7, 0.8), Choice(NOTHING.chosen, 1.3)]
    together = question.answer_all(question.alone, "sequential", choices)
    assert len({tuple(answer.tokens) for answer in together}) > 1
    for choice, answer in zip(choices, together, strict=True):
        [alone] = question.answer_all(question.alone, "sequential", [choice])
        assert alone.tokens == answer.tokens


def test_an_answer_goes_on_as_full_attention_would_after_it_differs(reader: Reader, stock) -> None:
    written = write(reader, "triples")
    question = Question(reader, written, MAX_TOKENS)
    [answer] = question.answer_all(question.alone, "tree", [NOTHING])
    assert answer.tokens != question.full.tokens
    expected = logits_of(stock, written, answer.tokens, written.ancestors(), written.home)
    assert answer.tokens == expected.argmax(-1).tolist()


def test_a_share_is_rounded_up_and_first_leaves_out_the_first_chunk(reader: Reader) -> None:
    written = write(reader, "paths")
    chosen = Selectors(Question(reader, written, MAX_TOKENS)).choose("first", 0.1, "tree")
    assert len(chosen) == num_chosen(0.1, written.forest.context_len)
    assert (written.chunks[chosen] > 0).all()
    assert written.in_chunk[chosen].max() <= len(chosen)


@pytest.mark.parametrize("form", ["merged", "paths", "triples"])
def test_names_are_tokens_of_names(reader: Reader, form: Form) -> None:
    written = write(reader, form)
    tokens = written.tokens[written.in_entity >= 0].tolist()
    text = reader.tokenizer.decode(tokens)
    assert "Elon Musk" in text and "South Africa" in text
    assert "founded" not in text and "born" not in text and "Question" not in text
