# SPDX-License-Identifier: Apache-2.0
"""What is right, what is wrong, and which weights may have spoken."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from eval.soak.judge import (
    COLD,
    EXACT,
    FINITE,
    TOLERANCE,
    Answer,
    Judge,
    compare,
    how_to_judge,
    shape_of,
)
from eval.soak.prompts import World
from tests.eval.soak.made import prompt_of

# Two places of a vocabulary of three tokens.
LOGPROBS = np.log(np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1]], np.float32))


def answer(tokens: list[int], *, off: float = 0.0, lost: int = 0, **changes: Any) -> Answer:
    rows = [[(float(LOGPROBS[step, token]) + off, token)] for step, token in enumerate(tokens)]
    return Answer(tokens, rows[lost:], **{"num_asked": len(tokens), **changes})


def test_the_likeliest_tokens_with_their_log_probabilities_are_right() -> None:
    assert compare(answer([0, 1]), LOGPROBS) == (pytest.approx(0, abs=1e-6), "")


def test_another_token_is_wrong_and_so_is_another_log_probability() -> None:
    assert "token 1 is 0" in compare(answer([0, 0]), LOGPROBS)[1]
    error, wrong = compare(answer([0, 1], off=2 * TOLERANCE), LOGPROBS)
    assert error == pytest.approx(2 * TOLERANCE, rel=1e-3)
    assert "off" in wrong
    assert not compare(answer([0, 1], off=TOLERANCE / 2), LOGPROBS)[1]


def test_two_tokens_that_cannot_be_told_apart_are_both_right() -> None:
    tie = LOGPROBS.copy()
    tie[0, 1] = tie[0, 0] - TOLERANCE / 2
    assert not compare(Answer([1], [[(float(tie[0, 1]), 1)]], 1), tie[:1])[1]


def test_the_rows_that_are_there_are_the_last_ones() -> None:
    assert not compare(answer([0, 1], lost=1), LOGPROBS)[1]
    assert shape_of(answer([0, 1], lost=1))
    assert not shape_of(answer([0, 1], lost=1, num_retractions=1))


def test_an_answer_has_the_length_that_was_asked_for_and_numbers() -> None:
    assert not shape_of(answer([0, 1]))
    assert "3 tokens were asked for" in shape_of(answer([0, 1], num_asked=3))
    assert "log-probabilities of token 0" in shape_of(answer([0], off=float("nan")))
    assert "log-probability 2" in shape_of(Answer([1], [[(-0.1, 2)]], 1))


def test_what_moves_keys_is_judged_exactly_only_where_nothing_was_reused() -> None:
    cold = {"shared": 4, "shifted": 0, "loaded": 0, "missed": 3, "retractions": 0}
    warm = cold | {"shifted": 3, "missed": 0}
    assert how_to_judge(prompt_of("plain"), None) == EXACT
    assert how_to_judge(prompt_of("tree"), warm) == EXACT
    for layout in ("staggered", "sequential"):
        assert how_to_judge(prompt_of(layout), cold) == COLD
        assert how_to_judge(prompt_of(layout), warm) == FINITE
        assert how_to_judge(prompt_of(layout), cold | {"retractions": 1}) == FINITE
        assert how_to_judge(prompt_of(layout), None) == FINITE


@pytest.mark.timeout(300)
def test_the_judge_knows_which_weights_spoke(tokenizer: Any) -> None:
    pytest.importorskip("torch")
    from eval.soak.oracle import Oracle
    from eval.soak.phases import FOLDERS

    prompt = World(tokenizer, 1).draw(random.Random(4))
    names = list(FOLDERS)
    said: list[Answer] = []
    for name in names:
        oracle = Oracle(FOLDERS[name])
        logprobs = oracle.score(prompt.input_ids, prompt.structure, [0])
        token = int(logprobs[0].argmax())
        said.append(Answer([token], [[(float(logprobs[0, token]), token)]], 1))

    async def verdicts() -> list[Any]:
        with Judge(FOLDERS) as judge:
            asked = [(said[0], names[:1]), (said[0], names[1:]), (said[1], names)]
            return [await judge.judge(prompt, one, of, None) for one, of in asked]

    first, other, either = asyncio.run(verdicts())
    assert not first.wrong and first.error < 1e-5
    assert other.wrong
    assert not either.wrong and either.weights == names[1]
