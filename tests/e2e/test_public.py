# SPDX-License-Identifier: Apache-2.0
"""Tenants that read what is public answer as if they had computed all of it, under pressure too."""

from __future__ import annotations

import random

import pytest

from tests.e2e.served import EngineCase, Served
from tests.helpers.engine import reuse_of
from tests.helpers.prompts import TreePrompt, random_forest, random_tokens

CASE = EngineCase(
    "public",
    "llama_gqa",
    "auto",
    chunk=64,
    environment={
        "DEPCACHE_HOST_GB": "0.002",  # about 1,000 tokens
        "DEPCACHE_LOAD_POLICY": "always",
        "DEPCACHE_PUBLIC_SALT": "",  # what is asked without a salt
    },
    arguments={"max_total_tokens": 600, "radix_eviction_policy": "lfu"},
)

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def case() -> EngineCase:
    return CASE


def test_a_tenant_finds_what_was_asked_without_a_salt(served: Served) -> None:
    rng = random.Random(5)
    prompt = TreePrompt(random_tokens(rng, 5), random_forest(rng, 3), random_tokens(rng, 3))
    assert reuse_of(served.ask(prompt, num_new=2)) == (0, 0, prompt.num_context)
    assert reuse_of(served.ask(prompt, num_new=2, extra_key="cy")) == (prompt.num_context, 0, 0)
    # And nobody finds a tenant's.
    prompt = TreePrompt(random_tokens(rng, 5), random_forest(rng, 3), random_tokens(rng, 3))
    for who in ("cy", "di", None):
        found = served.ask(prompt, num_new=2, extra_key=who)
        assert reuse_of(found) == (0, 0, prompt.num_context)


def test_answers_of_mixed_prompts_equal_a_recompute(served: Served) -> None:
    rng = random.Random(23)
    system = random_tokens(rng, 5)
    public = [tree for _ in range(6) for tree in random_forest(rng, 2)]
    private = {who: random_forest(rng, 4) for who in ("al", "bo")}
    num_read = num_loaded = 0
    for number in range(60):
        if number % 6 == 0:
            served.ask(TreePrompt(system, rng.sample(public, 4), random_tokens(rng, 3)), num_new=2)
        who = rng.choice(("al", "bo"))
        trees = [*rng.sample(public, 3), *rng.sample(private[who], 2)]
        rng.shuffle(trees)
        task = random_tokens(rng, rng.choice((3, 70)))  # the longer one is cached behind the trees
        prompt = TreePrompt(system, trees, task)
        for _ in range(2):
            report = served.ask(prompt, num_new=2, extra_key=who)["meta_info"]["depcache"]
            num_read += report["shared"]
            num_loaded += report["loaded"]
    state = served.engine.cache_state()
    assert num_read > 1000 and num_loaded > 0 and state["evicted_tokens"] > 0, state
    assert state["locked_tokens"] == 0
