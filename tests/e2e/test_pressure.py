# SPDX-License-Identifier: Apache-2.0
"""Promise P3: in a pool that is too small, with retractions and aborts, no slot is ever lost.

SGLang's strict check runs on every step and ends the scheduler on a leak; behind each test
the pool must also add up, and every answer that came must be the oracle's.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.served import EngineCase, Served
from tests.helpers.engine import reuse_of
from tests.helpers.prompts import (
    Tree,
    TreePrompt,
    chain_tree,
    plain,
    random_forest,
    random_tokens,
)

POOL_TOKENS = 420

SMALL_POOL = EngineCase(
    "small-pool",
    "llama_gqa",
    "auto",
    chunk=2048,
    environment={"DEPCACHE_QUEUE_ORDER": "lsp"},
    arguments={"max_total_tokens": POOL_TOKENS, "radix_eviction_policy": "lacr"},
)
RETRACTING = replace(
    SMALL_POOL,
    name="small-pool-retracting-chunk16",
    plan="cascade",
    chunk=16,
    environment={"SGLANG_TEST_RETRACT": "1", "DEPCACHE_QUEUE_ORDER": "lsp"},
    arguments={"max_total_tokens": POOL_TOKENS, "radix_eviction_policy": "lacr"},
)

# The test model has 2 KB of KV a token: about 1,000 tokens in host memory, less than is evicted.
HOST_TIER = replace(
    SMALL_POOL,
    name="small-pool-host-tier",
    chunk=64,
    environment={
        "DEPCACHE_HOST_GB": "0.002",
        "DEPCACHE_LOAD_POLICY": "always",
        "DEPCACHE_QUEUE_ORDER": "xor",
    },
    arguments={"max_total_tokens": POOL_TOKENS, "radix_eviction_policy": "lacr_adaptive"},
)

pytestmark = pytest.mark.sglang


@pytest.fixture(
    scope="module",
    params=[pytest.param(case, id=case.name) for case in (SMALL_POOL, RETRACTING, HOST_TIER)],
)
def case(request: pytest.FixtureRequest) -> EngineCase:
    return request.param


@pytest.fixture
def rng() -> random.Random:
    return random.Random(11)


def draw_prompt(rng: random.Random, system: list[int], pool: list[Tree]) -> TreePrompt:
    """Any layout and a plain prompt now and then; never one whose answer depends on history.

    Keys that move behind a system are approximate, so layouts that move keys get none.
    """
    kind = rng.choice(["tree", "tree", "staggered", "sequential", "plain"])
    task = random_tokens(rng, rng.randrange(1, 9))
    if kind == "plain":
        return plain(system + random_tokens(rng, rng.randrange(0, 40)) + task)
    trees = rng.sample(pool, rng.randrange(1, 6))
    return TreePrompt(system if kind == "tree" else [], trees, task, kind)


def retractions(results: list[dict[str, Any]]) -> int:
    return sum(result["meta_info"]["num_retractions"] for result in results)


def test_answers_stay_right_when_requests_are_retracted(served: Served, rng: random.Random) -> None:
    system, pool = random_tokens(rng, 9), random_forest(rng, 10)
    total = 0
    for _ in range(5):
        prompts = [draw_prompt(rng, system, pool) for _ in range(7)]
        results = served.ask_together(prompts, num_new=40, may_stop=True)
        total += retractions(results)
        for meta in (result["meta_info"] for result in results):
            report = meta.get("depcache", {"retractions": meta["num_retractions"]})
            assert report["retractions"] == meta["num_retractions"]
    assert total > 0


def test_a_working_set_larger_than_the_pool_is_evicted_and_computed_again(
    served: Served, rng: random.Random
) -> None:
    system = random_tokens(rng, 9)
    working_set = [random_forest(rng, 5) for _ in range(20)]
    before = served.engine.cache_state()["evicted_tokens"]
    for _ in range(2):
        for trees in working_set:
            served.ask(TreePrompt(system, trees, random_tokens(rng, 4)), num_new=2)
    assert served.engine.cache_state()["evicted_tokens"] - before > POOL_TOKENS
    last = TreePrompt(system, working_set[-1], random_tokens(rng, 4))
    assert reuse_of(served.ask(last, num_new=2))[2] == 0


def test_a_tree_that_was_evicted_in_part_is_completed(served: Served, rng: random.Random) -> None:
    """Leaves go first; what is left of a path is used and the rest is computed below it."""
    tree = (random_tokens(rng, 8), [chain_tree(rng, 60, 20 + i) for i in range(4)])
    prompt = TreePrompt(random_tokens(rng, 10), [tree], random_tokens(rng, 4))
    served.ask(prompt)
    filler = plain(random_tokens(rng, 250))
    served.ask(filler)
    result = served.ask(prompt)
    shared, _, missed = reuse_of(result)
    assert shared >= 18
    assert missed + result["meta_info"]["depcache"]["loaded"] >= 60


@pytest.mark.parametrize("layout", ["staggered", "sequential"])
def test_a_shifted_hit_that_cannot_fit_is_computed_again_and_nothing_hangs(
    served: Served, layout: str, rng: random.Random
) -> None:
    """A moved row takes a second slot while its source is held. Around the last length that
    fits, every length of the answer must come, and so must the next request's.
    """
    trees = [chain_tree(rng, 50, 20 + i) for i in range(3)]
    task = random_tokens(rng, 10)
    reasons = []
    # 150 held + 150 copied + 10 + answer + 1 < 420 is what fits.
    for num_new in (100, 106, 107, 108, 109, 110, 111, 112, 180):
        served.engine.flush()
        served.ask(TreePrompt([], trees, task, layout), num_new=2)
        moved = TreePrompt([], [trees[2], trees[0], trees[1]], task, layout)
        result = served.engine.run(served.engine.answer(moved, num_new))
        served.judge(moved, result)
        report = result["meta_info"]["depcache"]
        reasons.append(report["fallback_reason"])
        assert (report["shifted"] == 0) == (report["fallback_reason"] is not None)
    assert reasons[0] is None
    assert reasons[-1] is not None
    assert "too small" in reasons[-1]


@pytest.mark.parametrize("layout", ["staggered", "sequential"])
def test_many_moving_requests_at_once_all_get_their_answer(
    served: Served, layout: str, rng: random.Random
) -> None:
    trees = [chain_tree(rng, 30, 20 + i) for i in range(5)]
    served.ask(TreePrompt([], trees, random_tokens(rng, 3), layout))
    orders = [rng.sample(trees, 5) for _ in range(12)]
    prompts = [TreePrompt([], order, random_tokens(rng, 4), layout) for order in orders]
    served.ask_together(prompts, num_new=20)


def run_and_abort(
    served: Served, prompts: list[TreePrompt], num_new: int, delays_s: list[float | None]
) -> list[dict[str, Any] | None]:
    """Start all at once and abort each after its delay; None for those that were aborted."""
    engine = served.engine

    async def one(number: int, prompt: TreePrompt, delay_s: float | None) -> dict[str, Any] | None:
        rid = f"request-{number:02d}"  # SGLang aborts every id that begins with the given one
        work = asyncio.ensure_future(engine.answer(prompt, num_new, rid=rid))
        if delay_s is not None:
            await asyncio.wait([work], timeout=delay_s)
            if not work.done():
                engine.abort(rid)
        try:
            result = await work
        except ValueError:  # aborted before it ran
            return None
        is_done = result["meta_info"]["finish_reason"]["type"] == "length"
        return result if is_done else None

    async def all_of_them() -> list[dict[str, Any] | None]:
        pairs = zip(prompts, delays_s, strict=True)
        return list(await asyncio.gather(*(one(i, p, d) for i, (p, d) in enumerate(pairs))))

    return engine.run(all_of_them())


def judge_the_finished(
    served: Served, prompts: list[TreePrompt], results: list[dict[str, Any] | None]
) -> int:
    """Returns the number of those that were aborted."""
    for prompt, result in zip(prompts, results, strict=True):
        if result is not None:
            served.judge(prompt, result)
    return results.count(None)


def test_aborted_requests_give_back_what_they_held_running_or_queued(
    served: Served, rng: random.Random
) -> None:
    system, pool = random_tokens(rng, 9), random_forest(rng, 8)
    for _ in range(4):
        prompts = [draw_prompt(rng, system, pool) for _ in range(12)]
        delays_s = [rng.choice([0.0, 0.005, 0.03, 0.1, 0.2]) for _ in range(9)] + [None] * 3
        results = run_and_abort(served, prompts, 60, delays_s)
        assert judge_the_finished(served, prompts, results) > 0
        assert all(result is not None for result in results[9:])
        served.engine.check_conservation()


@pytest.mark.parametrize("layout", ["staggered", "sequential"])
def test_aborts_of_requests_whose_shifted_hits_wait_for_their_turn(
    served: Served, layout: str, rng: random.Random
) -> None:
    """Behind a long prompt that is computed in chunks, with copies allocated or not."""
    trees = [chain_tree(rng, 20, 20 + i) for i in range(4)]
    for step in range(12):
        served.ask(TreePrompt([], trees, random_tokens(rng, 3), layout), num_new=1)
        prompts = [
            TreePrompt([], [chain_tree(rng, 120, 16)], random_tokens(rng, 5), layout),
            *(
                TreePrompt([], rng.sample(trees, 4), random_tokens(rng, 3), layout)
                for _ in range(3)
            ),
        ]
        delays_s = [0.01 + 0.01 * step, 0.004 * step, 0.002 * step, None]
        results = run_and_abort(served, prompts, 12, delays_s)
        judge_the_finished(served, prompts, results)
        assert results[-1] is not None
        served.engine.check_conservation()


def test_the_same_request_id_may_be_used_again_after_an_abort(
    served: Served, rng: random.Random
) -> None:
    pool = random_forest(rng, 6)
    for delay_s in (0.0, 0.02, 0.1):
        prompts = [TreePrompt([], rng.sample(pool, 4), random_tokens(rng, 4), "sequential")]
        run_and_abort(served, prompts, 80, [delay_s])
        (result,) = run_and_abort(served, prompts, 5, [None])
        assert result is not None
        served.judge(prompts[0], result)


def test_a_thousand_random_requests_lose_no_slot(served: Served, rng: random.Random) -> None:
    system, pool = random_tokens(rng, 9), random_forest(rng, 30)
    num_aborted = 0
    for _ in range(50):
        prompts = [draw_prompt(rng, system, pool) for _ in range(20)]
        delays_s = [rng.uniform(0, 0.3) if rng.random() < 0.15 else None for _ in prompts]
        results = run_and_abort(served, prompts, rng.randrange(1, 6), delays_s)
        num_aborted += judge_the_finished(served, prompts, results)
        served.engine.check_conservation()
    assert 0 < num_aborted < 300
    assert served.engine.cache_state()["evicted_tokens"] > 10 * POOL_TOKENS
