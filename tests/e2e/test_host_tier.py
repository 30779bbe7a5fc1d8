# SPDX-License-Identifier: Apache-2.0
"""What was evicted from the device comes back from host memory, with the same answers."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.e2e.served import EngineCase, Served
from tests.helpers.fused_oracle import fuse
from tests.helpers.prompts import TreePrompt, plain, random_forest, random_tokens

POOL_TOKENS = 420

CASE = EngineCase(
    "host-tier",
    "llama_gqa",
    "auto",
    chunk=64,
    # About 10,000 tokens: all that these tests evict. Computing a tiny model is faster.
    environment={"DEPCACHE_HOST_GB": "0.02", "DEPCACHE_LOAD_POLICY": "always"},
    arguments={"max_total_tokens": POOL_TOKENS, "radix_eviction_policy": "lacr"},
)

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def case() -> EngineCase:
    return CASE


@pytest.fixture
def rng() -> random.Random:
    return random.Random(5)


def report_of(result: dict[str, Any]) -> dict[str, Any]:
    return result["meta_info"]["depcache"]


def push_out(served: Served, rng: random.Random, num_prompts: int = 12) -> None:
    """Fill the pool with other trees several times over."""
    for _ in range(num_prompts):
        served.ask(TreePrompt([], random_forest(rng, 6), random_tokens(rng, 4)), num_new=2)


def test_an_evicted_prompt_is_loaded_and_not_computed(served: Served, rng: random.Random) -> None:
    system, trees = random_tokens(rng, 9), random_forest(rng, 6)
    prompt = TreePrompt(system, trees, random_tokens(rng, 4))
    first = report_of(served.ask(prompt))
    assert first["missed"] == first["context_tokens"]
    push_out(served, rng)
    again = report_of(served.ask(prompt))
    assert again["loaded"] > 0
    assert again["missed"] == 0
    assert again["shared"] + again["loaded"] == again["context_tokens"]
    third = report_of(served.ask(prompt))
    assert (third["loaded"], third["shared"]) == (0, third["context_tokens"])


def test_loaded_tokens_count_as_cached(served: Served, rng: random.Random) -> None:
    prompt = TreePrompt(random_tokens(rng, 9), random_forest(rng, 5), random_tokens(rng, 4))
    served.ask(prompt)
    push_out(served, rng)
    result = served.ask(prompt)
    report = report_of(result)
    assert report["loaded"] > 0
    assert result["meta_info"]["cached_tokens"] == report["shared"] + report["loaded"]


def test_other_trees_below_the_same_system_and_subsets_use_what_was_loaded(
    served: Served, rng: random.Random
) -> None:
    system, trees = random_tokens(rng, 9), random_forest(rng, 6)
    served.ask(TreePrompt(system, trees, random_tokens(rng, 4)))
    push_out(served, rng)
    some = report_of(served.ask(TreePrompt(system, trees[3:], random_tokens(rng, 5))))
    rest = report_of(served.ask(TreePrompt(system, trees[::-1], random_tokens(rng, 3))))
    assert some["missed"] == rest["missed"] == 0
    assert some["loaded"] > 0
    assert 0 < rest["loaded"] < rest["context_tokens"]


def test_a_plain_prompt_comes_back_from_the_host_as_well(
    served: Served, rng: random.Random
) -> None:
    tokens = random_tokens(rng, 60)
    served.ask(plain(tokens))
    push_out(served, rng)
    result = served.ask(plain(tokens))
    assert result["meta_info"]["cached_tokens"] == len(tokens) - 1
    assert result["meta_info"]["cached_tokens_details"]["host"] > 0
    longer = served.ask(plain([*tokens, *random_tokens(rng, 30)]))
    assert longer["meta_info"]["cached_tokens"] == len(tokens)


@pytest.mark.parametrize("layout", ["staggered", "sequential"])
def test_layouts_that_move_keys_load_only_what_stays_in_place(
    served: Served, rng: random.Random, layout: str
) -> None:
    """Without a system a move is exact, so the answer must be that of a recompute."""
    trees = random_forest(rng, 6)
    served.ask(TreePrompt([], trees, random_tokens(rng, 4), layout))
    push_out(served, rng)
    same = report_of(served.ask(TreePrompt([], trees, random_tokens(rng, 4), layout)))
    assert same["loaded"] > 0
    push_out(served, rng)
    served.ask(TreePrompt([], trees[1:], random_tokens(rng, 4), layout))


def test_requests_that_arrive_together_share_what_one_of_them_loads(
    served: Served, rng: random.Random
) -> None:
    system, trees = random_tokens(rng, 9), random_forest(rng, 5)
    served.ask(TreePrompt(system, trees, random_tokens(rng, 4)))
    push_out(served, rng)
    prompts = [TreePrompt(system, trees, random_tokens(rng, 3 + i)) for i in range(4)]
    reports = [report_of(result) for result in served.ask_together(prompts)]
    assert all(report["missed"] == 0 for report in reports)
    loaded = sum(report["loaded"] for report in reports)
    assert 0 < loaded <= reports[0]["context_tokens"]


def test_another_salt_does_not_see_what_the_host_has(served: Served, rng: random.Random) -> None:
    prompt = TreePrompt(random_tokens(rng, 9), random_forest(rng, 5), random_tokens(rng, 4))
    served.ask(prompt, extra_key="a")
    push_out(served, rng)
    other = report_of(served.ask(prompt, extra_key="b"))
    assert (other["loaded"], other["shared"]) == (0, 0)
    push_out(served, rng)
    assert report_of(served.ask(prompt, extra_key="a"))["loaded"] > 0


def test_a_flush_forgets_the_host_too(served: Served, rng: random.Random) -> None:
    prompt = TreePrompt(random_tokens(rng, 9), random_forest(rng, 5), random_tokens(rng, 4))
    served.ask(prompt)
    push_out(served, rng)
    assert served.engine.cache_state()["host"]["cached_tokens"] > 0
    served.engine.flush()
    assert served.engine.cache_state()["host"]["cached_tokens"] == 0
    report = report_of(served.ask(prompt))
    assert (report["loaded"], report["shared"]) == (0, 0)


def test_rows_of_a_fused_request_come_back_by_its_settle_pass(
    served: Served, rng: random.Random
) -> None:
    prompt = fuse(
        TreePrompt(random_tokens(rng, 9), random_forest(rng, 5), random_tokens(rng, 4)),
        recompute=0.2,
    )
    first = served.engine.ask(prompt)
    assert report_of(first)["settled"] >= prompt.num_context
    for _ in range(12):  # each as often as the rows were used, or the policy keeps these
        other = TreePrompt([], random_forest(rng, 6), random_tokens(rng, 4))
        for _ in range(4):
            served.ask(other, num_new=2)
    again = served.engine.ask(prompt)
    # One token of the task is all that settling computes: the rows are loaded.
    assert (report_of(again)["settled"], report_of(again)["missed"]) == (1, 0)
    assert again["output_ids"] == first["output_ids"]
