# SPDX-License-Identifier: Apache-2.0
"""How far an engine in half precision is from the float32 oracle, and how far it may be."""

from __future__ import annotations

import random
from typing import Any

import torch

from tests.helpers.engine import RunningEngine, reuse_of
from tests.helpers.models import VOCAB_SIZE
from tests.helpers.oracle import Oracle, ShiftOracle
from tests.helpers.prompts import TreePrompt, plain, random_forest, random_tokens

NUM_NEW = 4
NUM_PROMPTS = 12


def of_plain_prompts(engine: RunningEngine, oracle: Oracle) -> float:
    """What the precision alone does to plain prompts of the same lengths: the yardstick."""
    rng = random.Random(19)
    values = []
    for _ in range(NUM_PROMPTS):
        prompt = plain(random_tokens(rng, rng.randrange(40, 90)))
        result = _ask(engine, prompt)
        values.append(_divergence(result, oracle.score(prompt, result["output_ids"])))
    return sum(values) / len(values)


def of_trees(engine: RunningEngine, oracle: Oracle, layout: str) -> tuple[float, int]:
    """The same for trees, cold, shared and moved; and how many tokens were moved."""
    rng = random.Random(23)
    engine.flush()
    shifts = ShiftOracle(oracle)
    system, pool = random_tokens(rng, 9), random_forest(rng, 8)
    values, num_shifted = [], 0
    for _ in range(NUM_PROMPTS):
        trees = rng.sample(pool, rng.randrange(3, 7))
        prompt = TreePrompt(system, trees, random_tokens(rng, 4), layout)
        result = _ask(engine, prompt)
        logprobs, _ = shifts.score(prompt, result["output_ids"])
        values.append(_divergence(result, logprobs))
        num_shifted += reuse_of(result)[1]
    return sum(values) / len(values), num_shifted


def _ask(engine: RunningEngine, prompt: TreePrompt) -> dict[str, Any]:
    return engine.ask(prompt, NUM_NEW, top_logprobs_num=VOCAB_SIZE)


def _divergence(result: dict[str, Any], logprobs: torch.Tensor) -> float:
    """Mean over the answer's tokens of KL(oracle || engine), in nats."""
    found = torch.empty_like(logprobs)
    for step, row in enumerate(result["meta_info"]["output_top_logprobs"]):
        assert len(row) == VOCAB_SIZE
        for logprob, token, _ in row:
            found[step, token] = logprob
    return float((logprobs.exp() * (logprobs - found)).sum(-1).mean())
