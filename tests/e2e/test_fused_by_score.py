# SPDX-License-Identifier: Apache-2.0
"""Selectors that go by scores choose what HuggingFace's dense softmax chooses, each time."""

from __future__ import annotations

import asyncio
import random
from math import ceil
from typing import Any

import numpy as np
import pytest

from depcache.prompt.forest import Forest
from depcache.prompt.recompute import Recompute
from depcache.select import select
from sglang_patches import compat
from tests.e2e.served import EngineCase, Served
from tests.e2e.test_fused import ENGINES, ask, error_of, forest_prompt, is_wrong
from tests.helpers.fused_oracle import FusedOracle, fuse
from tests.helpers.prompts import TreePrompt, plain, random_forest, random_tokens
from tests.helpers.tolerance import ORACLE_LOGPROB

SELECTORS = ("query", "query-context", "mixed", "deviation")
TIE = 1e-5
"""Two scores that are closer than this may change places; deviations as a share of the highest."""

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module", params=[pytest.param(case, id=case.name) for case in ENGINES])
def case(request: pytest.FixtureRequest) -> EngineCase:
    return request.param


@pytest.fixture
def rng() -> random.Random:
    return random.Random(17)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The reports of the requests that settle, in their order: what no client sees."""
    reports: list[dict[str, Any]] = []
    run_beside = compat.run_beside

    async def listen(manager: Any, obj: Any) -> dict[str, Any]:
        out = await run_beside(manager, obj)
        reports.append(out["meta_info"]["depcache"])
        return out

    monkeypatch.setattr(compat, "run_beside", listen)
    return reports


def long_prompt(rng: random.Random, num_trees: int = 4, num_task: int = 11) -> TreePrompt:
    return TreePrompt(
        random_tokens(rng, rng.choice([0, 5])),
        random_forest(rng, num_trees, levels=3),
        random_tokens(rng, num_task),
    )


def num_scoring(prompt: TreePrompt, select: str) -> int:
    """Tokens that the scores of a prompt cost: those of one layer of four count a quarter."""
    if select == "deviation":
        return ceil(prompt.num_context / 4) + 1
    return len(prompt.task) + 1


def is_tie(chosen: list[int], expected: list[int], scores: np.ndarray, select: str) -> bool:
    """Whether other tokens are chosen than expected; their scores are as high then."""
    if chosen == expected:
        return False
    differing = scores[sorted(set(chosen) ^ set(expected))]
    assert len(chosen) == len(expected)
    unit = scores.max() if select == "deviation" else 1.0
    assert differing.max() - differing.min() < TIE * unit
    return True


def test_the_tokens_and_the_answer_are_those_of_the_oracle(
    served: Served, oracle: FusedOracle, rng: random.Random, told: list[dict[str, Any]]
) -> None:
    num_scored = num_ties = 0
    for number in range(24):
        prompt = long_prompt(rng, 2 + number % 4, rng.choice([1, 2, 7, 19]))
        name, share = rng.choice(SELECTORS), rng.choice([0.1, 0.25, 0.5])
        expected, scores = oracle.choose(prompt, share, name)
        told.clear()
        result, report = ask(served, fuse(prompt, select=name, recompute=share))
        if report["see"] == "flat":  # all that could be selected would be
            assert not told
            continue
        chosen = told[-1]["chosen"]
        num_scored += 1
        num_ties += is_tie(chosen, expected, scores, name)
        assert error_of(oracle, prompt, chosen, result) < ORACLE_LOGPROB
        assert report["select"] == name and report["recomputed"] == len(expected)
        assert report["missed"] == 0
    assert num_scored >= 20 and num_ties <= 1


@pytest.mark.parametrize("name", ["query", "query-context", "mixed", "first", "random"])
def test_out_of_focus_nothing_is_computed_again(
    served: Served,
    oracle: FusedOracle,
    rng: random.Random,
    told: list[dict[str, Any]],
    name: str,
) -> None:
    num_dropped = 0
    for number in range(6):
        prompt = long_prompt(rng, 3 + number % 3, rng.choice([1, 7, 19]))
        asked = {"select": name, "recompute": 0.4, "budget": "chunk"}
        told.clear()
        ask(served, fuse(prompt, **asked))
        forest = Forest.make(
            prompt.num_tokens,
            len(prompt.system),
            prompt.segment_lens,
            prompt.segment_parents,
        )
        if name in SELECTORS:
            expected = told[-1]["chosen"]
        else:
            expected = select(forest, Recompute(0.4, name, budget="chunk")).tolist()  # pyright: ignore[reportArgumentType]
        in_context = name == "query-context"
        in_focus = oracle.choose_in_focus(prompt, expected, in_context=in_context)
        told.clear()
        result, report = ask(served, fuse(prompt, **asked, focus="settle"))
        assert told[-1]["chosen"] == in_focus and report["recomputed"] == len(in_focus)
        assert report["settled"] == len(prompt.task) + 1
        assert error_of(oracle, prompt, in_focus, result) < ORACLE_LOGPROB
        num_dropped += len(expected) - len(in_focus)
    assert num_dropped > 0


@pytest.mark.parametrize("name", ["mixed", "query-context", "deviation"])
def test_the_same_tokens_are_chosen_cold_warm_and_after_eviction(
    served: Served,
    oracle: FusedOracle,
    rng: random.Random,
    told: list[dict[str, Any]],
    name: str,
) -> None:
    prompt = long_prompt(rng)
    other = TreePrompt(prompt.system, prompt.trees[1:3], random_tokens(rng, 3))
    flat = plain(prompt.tokens)
    logprobs: list[list[float]] = []
    chosen: list[list[int]] = []
    befores: list[list[TreePrompt]] = [[], [other], [flat], [prompt], [other, flat, prompt]]
    for before in befores:
        served.engine.flush()
        for each in before:
            served.engine.ask(each)
        for _ in range(2):
            result, _ = ask(served, fuse(prompt, select=name, recompute=0.4))
            logprobs.append([value for value, *_ in result["meta_info"]["output_token_logprobs"]])
            chosen.append(told[-1]["chosen"])
    assert sum("chosen" in report for report in told) == 2 * len(befores)
    assert (len(told) == 2 * len(befores)) == (name == "mixed")  # others settle in a pass before
    assert all(each == chosen[0] for each in chosen)
    for each in logprobs:
        assert max(abs(a - b) for a, b in zip(each, logprobs[0], strict=True)) < 1e-5
    assert is_wrong(oracle, prompt, chosen[0][:-3], result)


@pytest.mark.parametrize("name", ["query", "query-context", "deviation"])
def test_what_scores_a_cached_context_caches_nothing(
    served: Served, rng: random.Random, told: list[dict[str, Any]], name: str
) -> None:
    prompt = TreePrompt(random_tokens(rng, 5), random_forest(rng, 4), random_tokens(rng, 24))
    served.ask(TreePrompt(prompt.system, prompt.trees, random_tokens(rng, 2)))
    cached = served.engine.check_conservation()["cached_tokens"]
    for _ in range(2):
        _, report = ask(served, fuse(prompt, select=name, recompute=0.3))
        assert report["settled"] == num_scoring(prompt, name)
        # The question alone reads rows where they are; the others stand in the flat prompt.
        num_shifted = 0 if name == "query" else told[-1]["shifted"]
        assert told[-1]["shared"] + num_shifted == prompt.num_context
    assert served.engine.check_conservation()["cached_tokens"] == cached


@pytest.mark.parametrize("name", ["query", "query-context", "deviation"])
def test_what_it_settles_is_what_tree_requests_compute(
    served: Served, rng: random.Random, told: list[dict[str, Any]], name: str
) -> None:
    prompt = long_prompt(rng)
    _, report = ask(served, fuse(prompt, select=name, recompute=0.3))
    in_one_pass = name == "query"
    assert len(told) == 2 - in_one_pass
    num_settled = prompt.num_context + 1 - in_one_pass  # a pass draws one token
    assert report["settled"] == num_settled + num_scoring(prompt, name)
    result = served.ask(prompt)  # judged by the oracle: reads every node
    assert result["meta_info"]["depcache"]["missed"] == 0


def test_rows_that_begin_like_the_question_change_nothing(
    served: Served, oracle: FusedOracle, rng: random.Random, told: list[dict[str, Any]]
) -> None:
    prompt = long_prompt(rng)
    served.engine.ask(TreePrompt(prompt.system, [(prompt.task, [])], random_tokens(rng, 2)))
    ask(served, fuse(prompt, select="query", recompute=0.3))
    assert told[-1]["chosen"] == oracle.choose(prompt, 0.3)[0]


@pytest.mark.parametrize("name", ["query", "query-context", "deviation"])
def test_requests_that_settle_together_keep_their_scores_apart(
    served: Served,
    oracle: FusedOracle,
    rng: random.Random,
    told: list[dict[str, Any]],
    name: str,
) -> None:
    prompts = [long_prompt(rng, num_task=num) for num in (3, 14, 8)]
    shared = TreePrompt(prompts[0].system, prompts[0].trees[::-1], random_tokens(rng, 9))
    prompts.append(shared)

    async def ask_all() -> list[dict[str, Any]]:
        fused = [fuse(each, select=name, recompute=0.3) for each in prompts]
        asked = (*fused, *prompts[:2])
        return await asyncio.gather(*(served.engine.answer(each, 6) for each in asked))

    results = served.engine.run(ask_all())
    expected = [oracle.choose(each, 0.3, name)[0] for each in prompts]
    assert sorted(each["chosen"] for each in told if "chosen" in each) == sorted(expected)
    for prompt, chosen, result in zip(prompts, expected, results, strict=False):
        assert error_of(oracle, prompt, chosen, result) < ORACLE_LOGPROB


def test_nothing_is_scored_where_nothing_is_selected(
    served: Served, rng: random.Random, told: list[dict[str, Any]]
) -> None:
    prompt = forest_prompt(rng)
    for settled in (True, False):
        _, report = ask(served, fuse(prompt, select="query", recompute=0))
        assert (report["settled"] > 0) == settled and report["recomputed"] == 0
    _, report = ask(served, fuse(prompt, select="mixed", recompute=1))
    assert report["see"] == "flat"
    assert not any("chosen" in report for report in told)


def test_a_cached_prefix_is_cheaper_than_scores(
    served: Served, rng: random.Random, told: list[dict[str, Any]]
) -> None:
    prompt = forest_prompt(rng, num_trees=6)
    flat = plain(prompt.tokens)
    served.engine.ask(flat)
    result, report = ask(served, fuse(prompt, select="query", pin=False))
    assert report["see"] == "flat" and "no more tokens" in report["fallback_reason"]
    served.judge(flat, result)
    assert not told


def test_without_a_pin_rows_that_come_again_are_scored(
    served: Served, oracle: FusedOracle, rng: random.Random, told: list[dict[str, Any]]
) -> None:
    prompt = TreePrompt(random_tokens(rng, 5), random_forest(rng, 6), random_tokens(rng, 3))
    served.engine.ask(prompt)
    result, report = ask(served, fuse(prompt, select="query", pin=False))
    assert report["see"] == "fused" and report["settled"] == len(prompt.task) + 1
    chosen, _ = oracle.choose(prompt, 0.15)
    assert told[-1]["chosen"] == chosen
    assert error_of(oracle, prompt, chosen, result) < ORACLE_LOGPROB
