# SPDX-License-Identifier: Apache-2.0
"""A tenant with a share keeps it on the device and in host memory while another floods both."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from sglang_patches.requests.tenants import join
from tests.e2e.served import EngineCase, Served
from tests.helpers.prompts import TreePrompt, random_forest, random_tokens

POOL_TOKENS = 420

CASE = EngineCase(
    "shares",
    "llama_gqa",
    "auto",
    chunk=64,
    environment={
        "DEPCACHE_HOST_GB": "0.002",  # about 1,000 tokens
        "DEPCACHE_LOAD_POLICY": "always",
        "DEPCACHE_TENANT_SHARES": json.dumps({"quiet": 0.45}),
    },
    arguments={"max_total_tokens": POOL_TOKENS, "radix_eviction_policy": "lfu"},
)

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def case() -> EngineCase:
    return CASE


@pytest.fixture
def rng() -> random.Random:
    return random.Random(17)


def ask(served: Served, prompt: TreePrompt, tenant: str) -> dict[str, Any]:
    return served.ask(prompt, num_new=2, extra_key=tenant)["meta_info"]["depcache"]


def flood(served: Served, rng: random.Random, tenant: str, num_prompts: int) -> None:
    """Each prompt is asked three times, so that it is worth more than what was asked once."""
    for _ in range(num_prompts):
        prompt = TreePrompt([], random_forest(rng, 6), random_tokens(rng, 4))
        for _ in range(3):
            ask(served, prompt, tenant)


def small_prompt(rng: random.Random) -> TreePrompt:
    return TreePrompt(random_tokens(rng, 9), random_forest(rng, 3), random_tokens(rng, 4))


@pytest.mark.parametrize(
    "quiet",
    [
        pytest.param("quiet", id="extra_key"),
        # As a chat's salt comes to the engine on the OpenAI routes of both releases.
        pytest.param(join("quiet", None), id="cache_salt"),
        pytest.param(join("quiet", "a key"), id="both"),
    ],
)
def test_a_flood_takes_nothing_of_a_share(served: Served, rng: random.Random, quiet: str) -> None:
    prompt = small_prompt(rng)
    assert prompt.num_context < 0.45 * POOL_TOKENS / 2
    first = ask(served, prompt, quiet)
    assert first["missed"] == prompt.num_context
    flood(served, rng, "loud", 30)
    state = served.engine.cache_state()
    assert state["evicted_within_share_tokens"] == 0, state
    assert state["evicted_tokens"] > 3 * POOL_TOKENS and state["host"]["evicted_tokens"] > 0
    again = ask(served, prompt, quiet)
    assert (again["shared"], again["loaded"], again["missed"]) == (prompt.num_context, 0, 0)
    assert state["evicted_within_share_tokens"] == 0


def test_without_a_share_the_same_is_lost(served: Served, rng: random.Random) -> None:
    """So the test above can fail."""
    prompt = small_prompt(rng)
    ask(served, prompt, "nobody")
    flood(served, rng, "loud", 30)
    again = ask(served, prompt, "nobody")
    assert again["missed"] > 0 and again["shared"] < prompt.num_context


def test_what_a_tenant_has_above_its_share_goes_as_before(
    served: Served, rng: random.Random
) -> None:
    many = [small_prompt(rng) for _ in range(30)]
    for prompt in many:
        ask(served, prompt, "quiet")
    flood(served, rng, "loud", 8)
    reports = [ask(served, prompt, "quiet") for prompt in many[:4]]
    assert sum(report["shared"] == report["context_tokens"] for report in reports) < 4
