# SPDX-License-Identifier: Apache-2.0
"""Promise P1 in bfloat16: the answers' distributions are as close to the oracle's as plain ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.engine import RunningEngine, reuse_of, start_engine
from tests.helpers.models import VOCAB_SIZE
from tests.helpers.prompts import LAYOUTS, TreePrompt, plain, random_forest, random_tokens
from tests.helpers.tolerance import BFLOAT16_KL_RATIO

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

MODEL = "llama_gqa"
NUM_NEW = 4


@pytest.fixture(scope="module")
def engine(model_path: Callable[[str], Path]) -> Iterator[RunningEngine]:
    with start_engine(model_path(MODEL), dtype="bfloat16") as engine:
        yield engine


def divergence(result: dict[str, Any], logprobs: Any) -> float:
    """Mean over the answer's tokens of KL(oracle || engine), in nats."""
    import torch

    found = torch.empty_like(logprobs)
    for step, row in enumerate(result["meta_info"]["output_top_logprobs"]):
        assert len(row) == VOCAB_SIZE
        for logprob, token, _ in row:
            found[step, token] = logprob
    return float((logprobs.exp() * (logprobs - found)).sum(-1).mean())


def ask(engine: RunningEngine, prompt: TreePrompt) -> dict[str, Any]:
    return engine.ask(prompt, NUM_NEW, top_logprobs_num=VOCAB_SIZE)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.fixture(scope="module")
def plain_divergence(engine: RunningEngine, oracle_of: Callable[[str], Any]) -> float:
    """What bfloat16 alone does to plain prompts of the same lengths: the yardstick."""
    rng = random.Random(19)
    prompts = [plain(random_tokens(rng, rng.randrange(40, 90))) for _ in range(12)]
    results = [ask(engine, prompt) for prompt in prompts]
    scores = [
        oracle_of(MODEL).score(p, r["output_ids"]) for p, r in zip(prompts, results, strict=True)
    ]
    return mean([divergence(r, s) for r, s in zip(results, scores, strict=True)])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cold_shared_and_shifted_answers_are_as_close_as_plain_ones(
    layout: str,
    engine: RunningEngine,
    oracle_of: Callable[[str], Any],
    plain_divergence: float,
) -> None:
    from tests.helpers.oracle import ShiftOracle

    rng = random.Random(23)
    engine.flush()
    shifts = ShiftOracle(oracle_of(MODEL))
    system, pool = random_tokens(rng, 9), random_forest(rng, 8)
    values, num_shifted = [], 0
    for _ in range(12):
        trees = rng.sample(pool, rng.randrange(3, 7))
        prompt = TreePrompt(system, trees, random_tokens(rng, 4), layout)
        result = ask(engine, prompt)
        logprobs, _ = shifts.score(prompt, result["output_ids"])
        values.append(divergence(result, logprobs))
        num_shifted += reuse_of(result)[1]
    assert bool(num_shifted) == (layout != "tree")
    assert mean(values) < BFLOAT16_KL_RATIO * plain_divergence
