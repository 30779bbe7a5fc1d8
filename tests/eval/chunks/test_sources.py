# SPDX-License-Identifier: Apache-2.0
"""KV computed behind other chunks, against a mask that says the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eval.chunks.methods import ask_methods
from eval.chunks.oracle import Choice, Question
from eval.chunks.reader import Reader
from eval.chunks.sources import behind, cache_craft, past_prompt, previous
from eval.chunks.written import Writer
from tests.eval.chunks.test_oracle import ASKED, MAX_TOKENS
from tests.helpers.models import make_model


@pytest.fixture(scope="module")
def question(tmp_path_factory: pytest.TempPathFactory) -> Question:
    reader = Reader(make_model("llama_gqa", tmp_path_factory.mktemp("model")))
    written = Writer(reader.tokenizer, cut_len=8).write(ASKED, "cut")
    return Question(reader, written, MAX_TOKENS)


def test_behind_nothing_is_alone(question: Question) -> None:
    found = behind(question, [[] for _ in range(question.written.forest.num_segments)])
    for (keys, values), (own_keys, own_values) in zip(found.kv, question.alone.kv, strict=True):
        assert torch.equal(keys, own_keys) and torch.equal(values, own_values)


def test_the_second_chunk_behind_the_first_is_full_attention(question: Question) -> None:
    cached = previous(question)
    keys, values = question.deviations(cached)
    is_second = question.written.chunks[question.written.context] <= 1
    assert keys[:, is_second].max() < 1e-6 and values[:, is_second].max() < 1e-6
    assert keys[1:, ~is_second].max() > 1e-3


def test_a_past_prompt_in_the_same_order_needs_nothing(question: Question) -> None:
    num = question.written.forest.num_segments
    variants = past_prompt(question, range(num))
    for chunk, variant in variants.items():
        assert variant.prefix == tuple(range(chunk))
        assert variant.outside.shape == (question.written.forest.lens[chunk],)
        assert sum(variant.inter.values()) == pytest.approx(variant.outside.sum())
        assert 0.5 <= variant.contextuality <= 1
    full = torch.cat([variants[chunk].kv[-1][1] for chunk in range(num)], 1)
    expected = question.full_kv[-1][1][:, question.written.forest.system_len :]
    torch.testing.assert_close(full, expected, rtol=0, atol=1e-4)


def test_cache_craft_chooses_no_more_than_the_share(question: Question) -> None:
    crafted = cache_craft(question)
    num = question.written.forest.context_len
    for share in (0.05, 0.3):
        assert len(crafted.choose(share)) <= share * num
    everything = [Choice(question.written.context)]
    [answer] = question.answer_all(crafted.cached, "sequential", everything)
    assert answer.tokens == question.full.tokens


def test_a_question_has_a_row_for_each_method(question: Question) -> None:
    rows = list(ask_methods(question.reader, ASKED, MAX_TOKENS))
    assert {"full", "reuse", "query", "previous", "fusionrag", "cache-craft"} <= {
        row["method"] for row in rows
    }
    assert all(np.isfinite(row["kl"]) for row in rows)
