# SPDX-License-Identifier: Apache-2.0
"""Selectors that go by scores, over rows that stand behind what is not in the prompt.

`mixed` over rows behind the chunk before them in their document; `query` over rows behind chunks
that are like them, which is FusionRAG as its paper has it.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from depcache.prompt.behind import check_behind, tokens_seen
from depcache.prompt.forest import Forest
from depcache.prompt.recompute import Recompute
from depcache.select import select
from tests.e2e import test_fused
from tests.e2e import test_fused_by_score as by_score
from tests.e2e.served import EngineCase, Served
from tests.e2e.test_fused_behind import ask, error_of
from tests.e2e.test_fused_by_score import SELECTORS, is_tie, num_scoring
from tests.helpers.fused_oracle import Behind, FusedOracle, fuse, is_several
from tests.helpers.prompts import TreePrompt, random_forest, random_tokens
from tests.helpers.tolerance import ORACLE_LOGPROB

pytestmark = pytest.mark.sglang

told = by_score.told


# A question apart, behind rows in their places: for each way of masking, in chunks and whole.
ENGINES = [case for case in test_fused.ENGINES if case.plan != "cascade"]


@pytest.fixture(scope="module", params=[pytest.param(case, id=case.name) for case in ENGINES])
def case(request: pytest.FixtureRequest) -> EngineCase:
    return request.param


@pytest.fixture
def rng() -> random.Random:
    return random.Random(23)


def rows_behind(rng: random.Random, num_rows: int, num_task: int) -> tuple[TreePrompt, Behind]:
    """Rows behind nothing, one text, several, and behind just what stands before them here."""
    trees = [(random_tokens(rng, rng.randint(3, 9)), []) for _ in range(num_rows - 1)]
    trees += random_forest(rng, 1, levels=2)
    prompt = TreePrompt(random_tokens(rng, rng.choice([1, 5])), trees, random_tokens(rng, num_task))
    behind: Behind = [
        rng.choice([None, random_tokens(rng, 4), [random_tokens(rng, n) for n in (3, 2)]])
        for _ in trees[:-1]
    ]
    behind[1] = trees[0][0]
    return prompt, [*behind, random_tokens(rng, 5)]


def first_of_rows(prompt: TreePrompt, behind: Behind) -> list[int]:
    """What `first` chooses of each row at a share of 0.4."""
    lens, parents = prompt.segment_lens, prompt.segment_parents
    forest = Forest.make(prompt.num_tokens, len(prompt.system), lens, parents)
    ids = [tuple(map(tuple, e)) if is_several(e) else e and tuple(e) for e in behind]
    seen = tokens_seen(np.array(prompt.tokens), forest, check_behind(ids, forest))
    return select(forest, Recompute(0.4, "first", budget="chunk"), seen).tolist()


def num_behind(behind: Behind) -> int:
    return sum(entry is not None for entry in behind)


def test_the_tokens_and_the_answer_are_those_of_the_oracle(
    served: Served, oracle: FusedOracle, rng: random.Random, told: list[dict[str, Any]]
) -> None:
    num_scored = num_ties = num_several = 0
    for number in range(16):
        prompt, behind = rows_behind(rng, 3 + number % 3, rng.choice([1, 2, 7, 19]))
        name, share = SELECTORS[number % len(SELECTORS)], rng.choice([0.1, 0.25, 0.5])
        expected, scores = oracle.choose(prompt, share, name, behind)
        told.clear()
        result, report = ask(served, fuse(prompt, select=name, recompute=share, behind=behind))
        if report["see"] == "flat":  # all that could be selected would be
            assert not told
            continue
        num_scored += 1
        chosen = told[-1]["chosen"]
        num_ties += is_tie(chosen, expected, scores, name)
        assert error_of(oracle, prompt, chosen, result, behind) < ORACLE_LOGPROB
        assert error_of(oracle, prompt, chosen, result, [None] * len(behind)) > ORACLE_LOGPROB
        assert (report["see"], report["select"], report["missed"]) == ("fused", name, 0)
        assert report["behind"] == num_behind(behind)
        assert report["recomputed"] == len(expected)
        num_several += any(map(is_several, behind))
    assert num_scored >= 12 and num_ties <= 1 and num_several >= 4


@pytest.mark.parametrize("name", ["query", "query-context", "first"])
def test_out_of_focus_nothing_is_computed_again(
    served: Served,
    oracle: FusedOracle,
    rng: random.Random,
    told: list[dict[str, Any]],
    name: str,
) -> None:
    num_dropped = 0
    in_context = name == "query-context"
    for number in range(4):
        prompt, behind = rows_behind(rng, 4 + number % 2, rng.choice([7, 19]))
        asked = {"select": name, "recompute": 0.4, "budget": "chunk", "behind": behind}
        _, report = ask(served, fuse(prompt, **asked, focus="settle"))
        in_focus = told[-1]["chosen"]
        # The whole budget is what a settled focus keeps some of.
        _, whole = ask(served, fuse(prompt, **asked))
        candidates = first_of_rows(prompt, behind) if name == "first" else told[-1]["chosen"]
        assert in_focus == oracle.choose_in_focus(
            prompt, candidates, in_context=in_context, behind=behind
        )
        assert report["recomputed"] == len(in_focus) <= whole["recomputed"]
        num_dropped += whole["recomputed"] - len(in_focus)
    assert num_dropped > 0


@pytest.mark.parametrize("name", SELECTORS)
def test_the_same_tokens_are_chosen_cold_warm_and_beside_rows_alone(
    served: Served, rng: random.Random, told: list[dict[str, Any]], name: str
) -> None:
    prompt, behind = rows_behind(rng, 5, 7)
    asked = fuse(prompt, select=name, recompute=0.3, behind=behind)
    alone = fuse(prompt, select=name, recompute=0.3)
    chosen: list[list[int]] = []
    for before in ([], [alone], [prompt], [TreePrompt(prompt.system, prompt.trees[:2], [7])]):
        served.engine.flush()
        for each in before:
            served.engine.ask(each)
        _, cold = ask(served, asked)
        chosen.append(told[-1]["chosen"])
        cached = served.engine.check_conservation()["cached_tokens"]
        _, warm = ask(served, asked)
        chosen.append(told[-1]["chosen"])
        assert cold["settled"] > warm["settled"] == num_scoring(prompt, name)
        assert served.engine.check_conservation()["cached_tokens"] == cached
    assert all(each == chosen[0] for each in chosen)
    ask(served, alone)
    assert told[-1]["chosen"] != chosen[0]  # what rows stand behind is seen


def test_requests_that_are_scored_together_keep_their_scores_apart(
    served: Served, oracle: FusedOracle, rng: random.Random, told: list[dict[str, Any]]
) -> None:
    asked = [
        (*rows_behind(rng, 4, num), name)
        for num, name in zip((3, 14, 8, 5), SELECTORS, strict=True)
    ]

    async def ask_all() -> list[dict[str, Any]]:
        prompts = [fuse(p, select=name, recompute=0.3, behind=b) for p, b, name in asked]
        return await asyncio.gather(*(served.engine.answer(each, 6) for each in prompts))

    results = served.engine.run(ask_all())
    expected = [oracle.choose(p, 0.3, name, b)[0] for p, b, name in asked]
    assert sorted(each["chosen"] for each in told if "chosen" in each) == sorted(expected)
    for (prompt, behind, _), chosen, result in zip(asked, expected, results, strict=True):
        assert error_of(oracle, prompt, chosen, result, behind) < ORACLE_LOGPROB
