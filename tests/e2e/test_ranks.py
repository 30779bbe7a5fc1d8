# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism: two ranks with a cache each answer as one, whatever both had to give up.

The ranks compare what they decided before every batch, and the engine ends where they differ: an
engine that still answers has ranks that agree.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.e2e import test_fused_by_score as by_score
from tests.e2e.served import EngineCase, Served
from tests.e2e.test_pressure import draw_prompt, retractions
from tests.helpers.engine import reuse_of
from tests.helpers.prompts import LAYOUTS, TreePrompt, plain, random_forest, random_tokens

CASE = EngineCase(
    "two-ranks",
    "llama_gqa",
    "auto",
    chunk=64,
    environment={
        "DEPCACHE_HOST_GB": "0.002",  # for each rank, which has half of every row
        "DEPCACHE_QUEUE_ORDER": "lsp",
        "SGLANG_TEST_RETRACT": "1",
        "SGLANG_TEST_RETRACT_INTERVAL": "5",
    },
    arguments={
        "tp_size": 2,
        "max_total_tokens": 800,
        "radix_eviction_policy": "lacr",
    },
)

pytestmark = pytest.mark.sglang

rng, told = by_score.rng, by_score.told


@pytest.fixture(scope="module")
def case() -> EngineCase:
    return CASE


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_computed_reordered_and_shared_as_on_one_rank(
    served: Served, layout: str, rng: random.Random
) -> None:
    system, trees = random_tokens(rng, 12), random_forest(rng, 5)
    orders = [trees, trees, trees[::-1]]
    prompts = [TreePrompt(system, order, random_tokens(rng, 7), layout) for order in orders]
    cold, warm, turned = served.ask_in_turn(prompts)
    assert reuse_of(cold) == (0, 0, prompts[0].num_context)
    assert reuse_of(warm) == (prompts[0].num_context, 0, 0)
    assert reuse_of(turned)[2] == 0


def test_plain_prompts_share_their_beginnings(served: Served, rng: random.Random) -> None:
    start = random_tokens(rng, 40)
    served.ask(plain(start + random_tokens(rng, 5)))
    again = served.ask(plain(start + random_tokens(rng, 5)))
    assert again["meta_info"]["cached_tokens"] == len(start)


test_scores_are_of_the_heads_of_all_ranks = (
    by_score.test_the_tokens_and_the_answer_are_those_of_the_oracle
)


def test_a_pool_that_is_too_small_costs_no_answer(served: Served, rng: random.Random) -> None:
    """Evicted to host memory and loaded from it, retracted, and aborted on the way."""
    pool = random_forest(rng, 90)
    system = random_tokens(rng, 10)
    num_loaded = num_retracted = 0
    layouts = set()
    for turn in range(60):
        prompts = [draw_prompt(rng, system, pool) for _ in range(6)]
        if turn % 4 == 3:
            _abort_one(served, prompts, f"gone-{turn}")
        else:
            results = served.ask_together(prompts, num_new=24, may_stop=True)
            layouts |= {prompt.layout for prompt in prompts if not prompt.is_plain}
            num_retracted += retractions(results)
            reports = [each["meta_info"].get("depcache", {}) for each in results]
            num_loaded += sum(report.get("loaded", 0) for report in reports)
    assert num_loaded >= 1000 and num_retracted > 0
    assert layouts == set(LAYOUTS)
    state = served.engine.check_conservation()
    assert state["evicted_tokens"] > 0
    for _ in range(2):
        served.engine.flush()
        state = served.engine.check_conservation()
        assert state["cached_tokens"] == state["host"]["cached_tokens"] == 0


def _abort_one(served: Served, prompts: list[TreePrompt], rid: str) -> None:
    """One of the prompts goes away after its first token; the others are judged."""

    async def ask_all() -> list[dict[str, Any]]:
        def leave(output: dict[str, Any]) -> None:
            served.engine.abort(rid)

        gone = served.engine.answer(prompts[0], 40, rid=rid, on_output=leave)
        others = [served.engine.answer(prompt, 6) for prompt in prompts[1:]]
        return await asyncio.gather(gone, *others)

    gone, *others = served.engine.run(ask_all())
    assert gone["meta_info"]["finish_reason"]["type"] == "abort"
    for prompt, result in zip(prompts[1:], others, strict=True):
        served.judge(prompt, result)
