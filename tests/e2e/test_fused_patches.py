# SPDX-License-Identifier: Apache-2.0
"""What fused requests compute again is kept, and an answer is the same as without it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.e2e.served import EngineCase, Served
from tests.helpers.fused_oracle import FusedOracle, FusedPrompt, fuse
from tests.helpers.judge import worst_error
from tests.helpers.prompts import TreePrompt, random_forest, random_tokens
from tests.helpers.tolerance import ORACLE_LOGPROB

POOL_TOKENS = 420

ENGINES = [
    EngineCase("patches", "llama_gqa", "auto", 2048, environment={"DEPCACHE_PATCHES": "true"}),
    EngineCase(
        "patches-chunk8-small-pool-host-tier",
        "llama_mha",
        "segments",
        8,
        overlap=False,
        environment={
            "DEPCACHE_PATCHES": "true",
            "DEPCACHE_HOST_GB": "0.002",
            "DEPCACHE_LOAD_POLICY": "always",
        },
        arguments={"max_total_tokens": POOL_TOKENS},
    ),
]

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module", params=[pytest.param(case, id=case.name) for case in ENGINES])
def case(request: pytest.FixtureRequest) -> EngineCase:
    return request.param


@pytest.fixture
def rng() -> random.Random:
    return random.Random(29)


def forest_prompt(rng: random.Random, num_trees: int = 4) -> TreePrompt:
    return TreePrompt(
        random_tokens(rng, 5), random_forest(rng, num_trees, 3), random_tokens(rng, 4)
    )


def ask(
    served: Served, oracle: FusedOracle, prompt: TreePrompt, chosen: list[int], **options: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer to `prompt` with these tokens recomputed, judged, and its report."""
    asked = prompt if isinstance(prompt, FusedPrompt) else fuse(prompt, chosen)
    result = served.engine.ask(asked, **options)
    bare = TreePrompt(prompt.system, prompt.trees, prompt.task)
    expected = oracle.score(bare, chosen, result["output_ids"])
    assert worst_error(result, expected) < ORACLE_LOGPROB
    report = result["meta_info"]["depcache"]
    counts = ("shared", "shifted", "loaded", "missed", "recomputed", "plain")
    assert sum(report[name] for name in counts) == prompt.num_tokens
    assert report["recomputed"] + report["patched"] == len(chosen)
    return result, report


def some_of(rng: random.Random, prompt: TreePrompt, num: int) -> list[int]:
    """Indices behind the first row, which sees everything before it as it is."""
    first = prompt.segment_parents[1:].index(-1) + 1
    start = len(prompt.system) + sum(prompt.segment_lens[:first])
    return sorted(rng.sample(range(start, prompt.num_context), num))


def is_wrong(result: dict[str, Any], logprobs: Any) -> bool:
    """Whether the answer is not that of the oracle: what a passing comparison proves."""
    try:
        return worst_error(result, logprobs) > ORACLE_LOGPROB
    except AssertionError:  # another token is likelier
        return True


def test_an_equal_context_costs_its_task_alone(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    prompt = forest_prompt(rng)
    chosen = some_of(rng, prompt, 6)
    first, report = ask(served, oracle, prompt, chosen)
    assert (report["patched"], report["recomputed"]) == (0, 6)
    again, report = ask(served, oracle, prompt, chosen)
    assert (report["patched"], report["recomputed"], report["missed"]) == (6, 0, 0)
    assert report["settled"] == 0
    for (value, token, _), (old, old_token, _) in zip(
        again["meta_info"]["output_token_logprobs"],
        first["meta_info"]["output_token_logprobs"],
        strict=True,
    ):
        assert token == old_token and abs(value - old) < 1e-5
    other = TreePrompt(prompt.system, prompt.trees, random_tokens(rng, 7))
    _, report = ask(served, oracle, other, chosen)
    assert (report["patched"], report["recomputed"]) == (6, 0)


def test_a_selector_that_goes_by_the_shape_finds_its_patch(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    prompt = forest_prompt(rng)
    asked = fuse(prompt, select="first", recompute=0.3)
    reports = [served.engine.ask(asked)["meta_info"]["depcache"] for _ in range(2)]
    assert reports[1]["patched"] == reports[0]["recomputed"] > 0
    off = fuse(prompt, select="first", recompute=0.3, patches=False)
    report = served.engine.ask(off)["meta_info"]["depcache"]
    assert "patched" not in report and report["recomputed"] == reports[0]["recomputed"]


def test_a_share_of_each_row_is_found_where_only_what_follows_differs(
    served: Served, rng: random.Random
) -> None:
    prompt = forest_prompt(rng)
    longer = TreePrompt(prompt.system, [*prompt.trees, *random_forest(rng, 2, 2)], prompt.task)
    reports = [
        served.engine.ask(fuse(each, select="first", recompute=0.3, budget="chunk"))["meta_info"][
            "depcache"
        ]
        for each in (prompt, longer)
    ]
    assert reports[1]["patched"] == reports[0]["recomputed"] > 0
    assert reports[1]["recomputed"] > 0


def test_a_prompt_that_begins_alike_shares_what_stands_before_the_difference(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    prompt = forest_prompt(rng)
    chosen = some_of(rng, prompt, 8)
    ask(served, oracle, prompt, chosen)
    last = len(prompt.segment_parents) - 1 - prompt.segment_parents[::-1].index(-1)
    stop = len(prompt.system) + sum(prompt.segment_lens[:last])
    before = [index for index in chosen if index < stop]
    other = TreePrompt(prompt.system, [*prompt.trees[:-1], *random_forest(rng, 1, 2)], prompt.task)
    _, report = ask(served, oracle, other, [*before, other.num_context - 1])
    assert (report["patched"], report["recomputed"]) == (len(before), 1)


def test_a_wrong_patch_would_be_seen(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    prompt = forest_prompt(rng)
    chosen = some_of(rng, prompt, 8)
    ask(served, oracle, prompt, chosen)
    fewer = chosen[1:]  # the others were computed over the one that is left out
    result, _ = ask(served, oracle, prompt, fewer)
    assert is_wrong(result, oracle.score(prompt, chosen, result["output_ids"]))


def test_no_other_request_reads_a_patch_and_no_other_tenant(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    prompt = forest_prompt(rng)
    chosen = some_of(rng, prompt, 6)
    ask(served, oracle, prompt, chosen)
    report = served.ask(prompt)["meta_info"]["depcache"]  # exact, and judged as that
    assert report["missed"] == 0 and "patched" not in report
    served.ask(TreePrompt(prompt.system + prompt.tokens[5:], [], [3]))
    for tenant in ("a", "b"):
        _, report = ask(served, oracle, prompt, chosen, extra_key=tenant)
        assert report["patched"] == 0
        _, report = ask(served, oracle, prompt, chosen, extra_key=tenant)
        assert report["patched"] == 6


def test_answers_are_the_same_in_a_small_pool_whatever_came_before(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    prompts = [forest_prompt(rng, num_trees) for num_trees in (2, 3, 4)]
    chosen = [some_of(rng, prompt, 5) for prompt in prompts]
    num_patched = 0
    for _ in range(24):
        number = rng.randrange(len(prompts))
        if rng.random() < 0.2:
            served.ask(prompts[number])
        if rng.random() < 0.3:  # pushes something out where the pool is small
            served.ask(TreePrompt(random_tokens(rng, 150), [], random_tokens(rng, 3)))
        together = [number, rng.randrange(len(prompts))]
        asked = [fuse(prompts[each], chosen[each]) for each in together]
        for each, result in zip(together, served.engine.generate(asked), strict=True):
            num_patched += result["meta_info"]["depcache"]["patched"]
            expected = oracle.score(prompts[each], chosen[each], result["output_ids"])
            assert worst_error(result, expected) < ORACLE_LOGPROB
    assert num_patched > 0
