# SPDX-License-Identifier: Apache-2.0
"""Chunks of a prefill and decode steps in one batch (`--enable-mixed-chunk`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.engine import start_engine
from tests.helpers.judge import assert_greedy
from tests.helpers.prompts import LAYOUTS, TreePrompt, plain, random_forest, random_tokens


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("plan", ["segments", "cascade", "custom_mask"])
def test_tokens_are_exact_when_chunks_and_decodes_run_in_one_batch(
    plan: str, model_path: Callable[[str], Any], oracle_of: Callable[[str], Any]
) -> None:
    rng = random.Random(17)
    oracle = oracle_of("llama_gqa")
    with start_engine(
        model_path("llama_gqa"),
        environment={"DEPCACHE_ATTENTION_PLAN": plan},
        chunked_prefill_size=16,
        enable_mixed_chunk=True,
    ) as engine:
        for layout in LAYOUTS:
            system = random_tokens(rng, 8) if layout == "tree" else []
            pool = random_forest(rng, 10)
            for _ in range(3):
                prompts = [
                    TreePrompt(system, rng.sample(pool, 4), random_tokens(rng, 5), layout)
                    for _ in range(6)
                ]
                prompts.insert(2, plain(random_tokens(rng, 70)))
                # SGLang mixes only batches that want no log-probabilities.
                options = {"return_logprob": False, "top_logprobs_num": 0}
                for prompt, result in zip(
                    prompts, engine.generate(prompts, 12, **options), strict=True
                ):
                    assert_greedy(result, oracle.score(prompt, result["output_ids"]))
        engine.check_conservation()
