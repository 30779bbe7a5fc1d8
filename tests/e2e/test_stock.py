# SPDX-License-Identifier: Apache-2.0
"""Promise P5: without dependency data the engine answers as stock SGLang does.

The same work is given to an engine with SGLang's own cache and attention and to one with
ours, one after the other; tokens, usage (cached tokens too) and log-probabilities are equal.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.engine import RunningEngine, start_engine
from tests.helpers.models import MILD_MODEL
from tests.helpers.prompts import plain, random_tokens
from tests.helpers.tolerance import STOCK_LOGPROB

pytestmark = pytest.mark.sglang

POOL_TOKENS = 1500
Answers = dict[str, list[dict[str, Any]]]

STOCK_ATTENTION = {"DEPCACHE_CPU_ATTENTION": "stock"}


def alone_and_again(engine: RunningEngine) -> list[dict[str, Any]]:
    rng = random.Random(1)
    prompts = [plain(random_tokens(rng, num_tokens)) for num_tokens in (1, 2, 30, 64, 65, 300)]
    return [engine.ask(prompt, 8) for prompt in [*prompts, *prompts]]


def common_prefixes(engine: RunningEngine) -> list[dict[str, Any]]:
    rng = random.Random(2)
    prefix = random_tokens(rng, 100)
    prompts = [
        plain(prefix[:cut] + random_tokens(rng, 20)) for cut in (100, 50, 100, 77, 1, 50, 99)
    ]
    return [engine.ask(prompt, 5) for prompt in prompts]


def conversations(engine: RunningEngine) -> list[dict[str, Any]]:
    """Each turn continues the answer before it: prompt and answer are cached."""
    rng = random.Random(3)
    answers, tokens = [], random_tokens(rng, 40)
    for _ in range(5):
        answers.append(engine.ask(plain(tokens), 10))
        tokens = tokens + answers[-1]["output_ids"] + random_tokens(rng, 7)
    return answers


def batches(engine: RunningEngine) -> list[dict[str, Any]]:
    rng = random.Random(4)
    prefix = random_tokens(rng, 60)
    answers = []
    for _ in range(3):
        prompts = [plain(prefix + random_tokens(rng, 1 + 9 * i)) for i in range(6)]
        answers += engine.generate(prompts, 6)
    samples = engine.ask_raw(random_tokens(rng, 40), {"max_new_tokens": 6, "n": 2})
    return [*answers, *samples]


def more_than_fits(engine: RunningEngine) -> list[dict[str, Any]]:
    """The same prompts are evicted, so the same tokens are cached the second time."""
    rng = random.Random(5)
    prompts = [plain(random_tokens(rng, 180)) for _ in range(12)]
    order = [*range(12), 11, 3, 10, 0, 7, 11, 10, 1]
    return [engine.ask(prompts[i], 3) for i in order]


def logprobs_of_the_prompt(engine: RunningEngine) -> list[dict[str, Any]]:
    rng = random.Random(6)
    prompt = plain(random_tokens(rng, 90))
    return [engine.ask(prompt, 2, logprob_start_len=start) for start in (0, 0, 40, 89)]


def salted(engine: RunningEngine) -> list[dict[str, Any]]:
    prompt = plain(random_tokens(random.Random(7), 50))
    return [engine.ask(prompt, 3, extra_key=key) for key in (None, "a", "a", "b", None)]


def foreign_params(engine: RunningEngine) -> list[dict[str, Any]]:
    """Penalties, biases, stops, and custom parameters that are none of ours."""
    tokens = random_tokens(random.Random(8), 40)
    settings = [
        {"frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"logit_bias": {"20": 100.0}},
        {"custom_params": {"mine": [1, 2], "other": "x"}},
        {"min_new_tokens": 3, "stop_token_ids": [5]},
    ]
    return [engine.ask_raw(tokens, {"max_new_tokens": 6, **extra}) for extra in settings]


WORK: dict[str, Callable[[RunningEngine], list[dict[str, Any]]]] = {
    work.__name__: work
    for work in (
        alone_and_again,
        common_prefixes,
        conversations,
        more_than_fits,
        logprobs_of_the_prompt,
        salted,
        foreign_params,
        batches,
    )
}
# Which requests meet in one forward pass depends on time, and sums of floats on that: up to
# 1e-5 on the sharpened models.
ONE_BY_ONE = [name for name in WORK if name != "batches"]
WORK_BY_MODEL = {"llama_gqa": ONE_BY_ONE, MILD_MODEL: ["batches"]}


def run_work(
    model_path: Callable[[str], Path], environment: dict[str, str], **arguments: Any
) -> Answers:
    """Everything that is compared, by what it is about."""
    answers = {}
    for model, names in WORK_BY_MODEL.items():
        with start_engine(
            model_path(model),
            environment=environment,
            max_total_tokens=POOL_TOKENS,
            chunked_prefill_size=64,
            **arguments,
        ) as engine:
            answers |= {name: WORK[name](engine) for name in names}
    return answers


@pytest.fixture(scope="module")
def stock_answers(model_path: Callable[[str], Path]) -> Answers:
    return run_work(model_path, STOCK_ATTENTION, radix_cache_backend=None)


@pytest.fixture(scope="module")
def answers(model_path: Callable[[str], Path], stock_answers: Answers) -> Answers:
    """The answers of an engine with our cache and our attention over new rows only."""
    return run_work(model_path, {})


@pytest.fixture(scope="module")
def answers_with_stock_attention(
    model_path: Callable[[str], Path], stock_answers: Answers
) -> Answers:
    """The answers of an engine with our cache and SGLang's attention."""
    return run_work(model_path, STOCK_ATTENTION)


def logprobs_of(answer: dict[str, Any]) -> list[tuple[float | None, int]]:
    """Every (log-probability, token) that an answer tells."""
    meta = answer["meta_info"]
    rows = [*meta["output_token_logprobs"], *(meta.get("input_token_logprobs") or [])]
    for name in ("output_top_logprobs", "input_top_logprobs"):
        rows += [row for rows in meta.get(name) or [] for row in rows or []]
    return [(logprob, token) for logprob, token, _ in rows]


USAGE = ("prompt_tokens", "completion_tokens", "cached_tokens", "finish_reason")


@pytest.mark.parametrize("name", WORK)
def test_tokens_and_usage_are_those_of_stock_sglang(
    name: str, answers: Answers, stock_answers: Answers
) -> None:
    for ours, stock in zip(answers[name], stock_answers[name], strict=True):
        assert ours["output_ids"] == stock["output_ids"]
        assert ours["text"] == stock["text"]
        assert [ours["meta_info"][key] for key in USAGE] == [
            stock["meta_info"][key] for key in USAGE
        ]
        assert "depcache" not in ours["meta_info"]


@pytest.mark.parametrize("name", WORK)
def test_logprobs_are_those_of_stock_sglang(
    name: str, answers: Answers, stock_answers: Answers
) -> None:
    for ours, stock in zip(answers[name], stock_answers[name], strict=True):
        pairs = zip(logprobs_of(ours), logprobs_of(stock), strict=True)
        for (our_logprob, our_token), (logprob, token) in pairs:
            assert our_token == token
            assert our_logprob == pytest.approx(logprob, abs=STOCK_LOGPROB)


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_with_stock_attention_every_logprob_is_the_same_number(
    name: str, answers_with_stock_attention: Answers, stock_answers: Answers
) -> None:
    for ours, stock in zip(answers_with_stock_attention[name], stock_answers[name], strict=True):
        assert ours["output_ids"] == stock["output_ids"]
        assert logprobs_of(ours) == logprobs_of(stock)


def test_the_work_has_prefix_hits_and_evictions(stock_answers: Answers) -> None:
    """Or the comparison above would compare empty caches."""
    cached = {
        name: [answer["meta_info"]["cached_tokens"] for answer in answers]
        for name, answers in stock_answers.items()
    }
    assert cached["alone_and_again"][6:] == [0, 1, 29, 63, 64, 299]
    assert cached["common_prefixes"][2] == 100
    assert all(cached["conversations"][1:])
    again = cached["more_than_fits"][12:]
    assert 0 in again
    assert 179 in again
