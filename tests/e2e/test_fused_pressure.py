# SPDX-License-Identifier: Apache-2.0
"""Fused requests in a pool that is too small: no slot is lost, and no cached node is written.

They are aborted before, in and between their two passes, retracted, and lose their rows between
the passes. Which KV the nodes hold is read out of the scheduler's process.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from depcache.prompt.recompute import BY_SCORE
from sglang_patches.http.ask import ask as ask_scheduler
from tests.e2e.served import EngineCase, Served
from tests.e2e.test_fused import context, error_of
from tests.e2e.test_pressure import HOST_TIER, POOL_TOKENS, RETRACTING, SMALL_POOL, run_and_abort
from tests.helpers import passes as passes_module
from tests.helpers.ends import SLOWEST_S
from tests.helpers.forked import PREPARE
from tests.helpers.fused_oracle import FusedOracle, FusedPrompt, fuse
from tests.helpers.passes import Passes
from tests.helpers.prompts import Tree, TreePrompt, plain, random_forest, random_tokens
from tests.helpers.tolerance import ORACLE_LOGPROB

KV_SUMS = {PREPARE: "tests.helpers.kv_sums"}
ROOMY = EngineCase("roomy-chunk64", "llama_gqa", "auto", 64, arguments={"max_total_tokens": 60_000})
CASES = [
    replace(case, name=f"fused-{case.name}", environment={**case.environment, **KV_SUMS})
    for case in (ROOMY, SMALL_POOL, RETRACTING, HOST_TIER)
]
SAME_SUM = 1e-3
"""A token's KV that is computed again in another batch differs by less, and by far more where it
has seen something else."""

passes = passes_module.passes

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module", params=[pytest.param(case, id=case.name) for case in CASES])
def case(request: pytest.FixtureRequest) -> EngineCase:
    return request.param


@pytest.fixture
def rng() -> random.Random:
    return random.Random(31)


Sums = dict[str, tuple[str, float]]
"""Digest of the way to a cached token -> digest and weighted sum of its KV."""


def kv_sums(served: Served) -> Sums:
    manager = served.engine.engine.tokenizer_manager
    return served.engine.run(ask_scheduler(manager, {"ask": "kv_sums"}))["reply"]


class Kept:
    """Every token's KV as it was first seen, to compare what is cached later with."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.first: Sums = {}
        self.num_compared = 0

    def compare(self, *, is_exact: bool) -> None:
        for way, (digest, total) in kv_sums(self.served).items():
            if way in self.first:
                self.num_compared += 1
                assert abs(total - self.first[way][1]) < SAME_SUM
                assert not is_exact or digest == self.first[way][0]
            self.first.setdefault(way, (digest, total))


def draw_prompt(rng: random.Random, system: list[int], pool: list[Tree]) -> TreePrompt:
    """Fused in any way, exact or plain, over trees of a pool of them."""
    trees = rng.sample(pool, rng.randrange(1, 5))
    prompt = TreePrompt(system, trees, random_tokens(rng, rng.randrange(1, 9)))
    kinds = ("tree", "plain", "given", "given", "first", "random", *BY_SCORE)
    kind = rng.choice(kinds)
    if kind == "tree":
        return prompt
    if kind == "plain":
        return plain(prompt.tokens)
    asked: dict[str, Any] = {"pin": rng.random() < 0.6, "patches": rng.random() < 0.3}
    if kind == "given":
        num = rng.randrange(len(context(prompt)))
        return fuse(prompt, sorted(rng.sample(context(prompt), num)), **asked)
    return fuse(prompt, select=kind, recompute=rng.choice((0, 0.1, 0.3, 1)), **asked)


def judge(served: Served, oracle: FusedOracle, prompt: TreePrompt, result: dict[str, Any]) -> bool:
    """Whether the answer could be judged; then it is right.

    Not where nobody here knows which tokens were computed again, and of which rows.
    """
    if not isinstance(prompt, FusedPrompt):
        served.judge(prompt, result)
        return True
    report = result["meta_info"]["depcache"]
    if report["see"] == "flat":
        served.judge(plain(prompt.tokens), result)
        return True
    is_whole = report["missed"] == report["retractions"] == 0
    if report["select"] != "given" or not is_whole or report["fallback_reason"]:
        return False
    assert error_of(oracle, prompt, prompt.asked["selected"], result) < ORACLE_LOGPROB
    return True


def test_hundreds_of_requests_lose_no_slot_and_write_no_node(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    system, pool = random_tokens(rng, 6), random_forest(rng, 12)
    is_exact = served.case.arguments["max_total_tokens"] > POOL_TOKENS
    before = served.engine.cache_state()["evicted_tokens"]
    kept = Kept(served)
    num_aborted = num_judged = num_fused = 0
    for _ in range(25):
        prompts = [draw_prompt(rng, system, pool) for _ in range(20)]
        delays_s = [rng.uniform(0, 0.3) if rng.random() < 0.25 else None for _ in prompts]
        results = run_and_abort(served, prompts, rng.randrange(1, 6), delays_s)
        for prompt, result in zip(prompts, results, strict=True):
            if result is None:
                num_aborted += isinstance(prompt, FusedPrompt)
                continue
            num_judged += judge(served, oracle, prompt, result)
            num_fused += result["meta_info"].get("depcache", {}).get("see") == "fused"
        served.engine.check_conservation()
        kept.compare(is_exact=is_exact)
    evicted = served.engine.cache_state()["evicted_tokens"] - before
    assert evicted == 0 if is_exact else evicted > 5 * POOL_TOKENS
    assert num_aborted > 10 and num_judged > 200 and num_fused > 100
    assert kept.num_compared > 1_000
    wait_until_forgotten(served)


def test_a_row_that_had_seen_others_would_be_told_apart(served: Served, rng: random.Random) -> None:
    trees = random_forest(rng, 2)
    prompt = TreePrompt(random_tokens(rng, 4), trees, random_tokens(rng, 3))
    served.ask(prompt)
    alone = {total for _, total in kv_sums(served).values()}
    served.engine.flush()
    # The first tree as the system: now the second one stands where it did, and sees the first.
    served.ask(TreePrompt(prompt.tokens[: prompt.num_context], [], prompt.task))
    flat = [total for _, total in kv_sums(served).values()]
    assert max(min(abs(total - other) for other in alone) for total in flat) > 100 * SAME_SUM


def wait_until_forgotten(served: Served) -> None:
    """Nothing is left of any request, in the process that took it either.

    0.5.17 forgets there at once what the scheduler still runs a while.
    """
    deadline = time.monotonic() + SLOWEST_S
    manager = served.engine.engine.tokenizer_manager
    while True:
        state = served.engine.cache_state()
        num_running = state["capacity_tokens"] - state["free_tokens"] - state["cached_tokens"]
        if not manager.rid_to_state and not num_running:
            return
        assert time.monotonic() < deadline, (list(manager.rid_to_state), state)
        time.sleep(0.02)


def outcome(served: Served, work: Awaitable[dict[str, Any]]) -> dict[str, Any] | None:
    """The answer, or None if it was aborted."""
    try:
        result = served.engine.run(work)
    except (ValueError, asyncio.CancelledError):
        return None
    is_aborted = result["meta_info"]["finish_reason"]["type"] == "abort"
    return None if is_aborted else result


End = Callable[[], None]


async def ask_and_end(
    served: Served, passes: Passes, prompt: TreePrompt, stage: str, how: str
) -> dict[str, Any]:
    """Asks, and ends the request at a stage: by an abort, of it or of all requests, or because its
    client went away."""
    ended = asyncio.Event()

    def end() -> None:
        ended.set()
        if how == "abort":
            served.engine.abort("request")
        elif how == "abort all":
            served.engine.abort_all()
        else:
            work.cancel()

    async def end_once(rid: str) -> None:
        if not ended.is_set():
            end()

    if stage == "settle":
        passes.during = end_once
    elif stage == "between":
        passes.behind = end_once
    first = {"on_output": lambda _: ended.is_set() or end()} if stage == "fuse" else {}
    work = asyncio.ensure_future(served.engine.answer(prompt, 200, rid="request", **first))
    if stage == "before":
        await asyncio.sleep(0)
        end()
    try:
        return await work
    finally:
        assert ended.is_set()


@pytest.mark.parametrize(
    ("stage", "how"),
    [
        *product(["before", "settle", "between", "fuse"], ["abort", "cancel"]),
        *product(["settle", "between", "fuse"], ["abort all"]),
    ],
)
@pytest.mark.parametrize("select", ["first", "query"])
def test_a_request_that_ends_at_any_stage_leaves_nothing(
    served: Served,
    oracle: FusedOracle,
    rng: random.Random,
    passes: Passes,
    select: str,
    stage: str,
    how: str,
) -> None:
    system, pool = random_tokens(rng, 5), random_forest(rng, 8)
    kept = Kept(served)
    for _ in range(2):
        prompt = TreePrompt(system, rng.sample(pool, 4), random_tokens(rng, 3))
        asked = fuse(prompt, select=select, recompute=0.3)
        passes.during, passes.behind = Passes().during, Passes().behind
        assert outcome(served, ask_and_end(served, passes, asked, stage, how)) is None
        wait_until_forgotten(served)
        served.engine.check_conservation()
        kept.compare(is_exact=False)
    passes.during, passes.behind = Passes().during, Passes().behind
    again = fuse(prompt, [index for index in context(prompt) if index % 3 == 0])
    result = outcome(served, served.engine.answer(again, 6, rid="request"))
    assert result is not None
    assert judge(served, oracle, again, result)


def test_rows_that_leave_between_the_passes_are_computed_with_full_view(
    served: Served, rng: random.Random, passes: Passes
) -> None:
    if served.case.arguments["max_total_tokens"] > POOL_TOKENS:
        pytest.skip("nothing leaves this pool")
    has_host = "DEPCACHE_HOST_GB" in served.case.environment

    async def fill(rid: str) -> None:
        # Nine slots are left to the others: less than the system has, so every row goes.
        await served.engine.answer(plain(random_tokens(rng, POOL_TOKENS - 10)), 1)

    passes.behind = fill
    for _ in range(4):
        prompt = TreePrompt(random_tokens(rng, 12), random_forest(rng, 4), random_tokens(rng, 4))
        chosen = sorted(rng.sample(context(prompt), 5))
        result = served.engine.ask(fuse(prompt, chosen))
        report = result["meta_info"]["depcache"]
        assert report["settled"] > 0
        assert report["missed"] == prompt.num_context - len(chosen)
        served.judge(plain(prompt.tokens), result)
        again = served.ask(prompt)["meta_info"]["depcache"]  # judged: reads every node
        num_kept = again["loaded"] if has_host else 0  # of what was settled
        assert again["missed"] >= prompt.num_context - len(prompt.system) - num_kept
    assert passes.num_settled == 4


def test_everything_recomputed_is_the_flat_prompt_for_64_tokens(
    served: Served, rng: random.Random
) -> None:
    system, pool = random_tokens(rng, 5), random_forest(rng, 8)
    for _ in range(2):
        trees = [rng.sample(pool, 3) for _ in range(4)]
        prompts = [TreePrompt(system, each, random_tokens(rng, 4)) for each in trees]
        for prompt in prompts[:2]:
            served.engine.ask(rng.choice([prompt, fuse(prompt, recompute=0.2)]))
        asked = [fuse(prompt, recompute=1) for prompt in prompts]
        for prompt, result in zip(prompts, served.engine.generate(asked, 64), strict=True):
            assert result["meta_info"]["depcache"]["see"] == "flat"
            assert len(result["output_ids"]) == 64
            served.judge(plain(prompt.tokens), result)
