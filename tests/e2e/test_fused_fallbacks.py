# SPDX-License-Identifier: Apache-2.0
"""A fused request that cannot be fused gets the flat prompt's answer, and is told why."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.e2e.served import EngineCase, Served
from tests.e2e.test_fused import context
from tests.helpers import passes as passes_module
from tests.helpers.forked import PREPARE
from tests.helpers.fused_oracle import fuse
from tests.helpers.passes import Passes
from tests.helpers.prompts import (
    BODILESS_TOKEN,
    TreePrompt,
    chain_tree,
    plain,
    random_forest,
    random_tokens,
)

POOL_TOKENS = 420
SELECTORS = ["first", "mixed", "query-context", "deviation"]

CASES = [
    EngineCase(
        f"fallbacks-{name}",
        "llama_gqa",
        "auto",
        chunk,
        overlap,
        arguments={"max_total_tokens": POOL_TOKENS},
        environment={PREPARE: "tests.helpers.planted"},
    )
    for name, chunk, overlap in (("whole", 512, True), ("chunked", 16, False))
]

passes = passes_module.passes

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> EngineCase:
    return request.param


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """One of each test's own: a server that meets the same context again would keep it flat."""
    return random.Random(request.node.name)


def check_flat(
    served: Served, prompt: TreePrompt, result: dict[str, Any], reason: str
) -> dict[str, Any]:
    """The answer is the flat prompt's, by the oracle and by the engine. Returns its report."""
    flat = plain(prompt.tokens)
    served.judge(flat, result)
    assert result["output_ids"] == served.engine.ask(flat, len(result["output_ids"]))["output_ids"]
    report = result["meta_info"]["depcache"]
    assert reason in report["fallback_reason"]
    served.engine.check_conservation()
    return report


def forest_prompt(rng: random.Random) -> TreePrompt:
    return TreePrompt(random_tokens(rng, 5), random_forest(rng, 6), random_tokens(rng, 4))


@pytest.mark.parametrize("patches", [False, True])
@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_pool_that_is_too_small_for_the_copies(
    served: Served, rng: random.Random, is_pinned: bool, patches: bool
) -> None:
    trees = [chain_tree(rng, 50, 20 + i) for i in range(3)]
    prompt = TreePrompt(random_tokens(rng, 5), trees, random_tokens(rng, 4))
    served.ask(TreePrompt(prompt.system, trees[1:], random_tokens(rng, 3)))
    asked = fuse(prompt, recompute=0.2, patches=patches)
    small = served.engine.ask(asked, 6)["meta_info"]["depcache"]
    assert small["fallback_reason"] is None and small["shifted"] > 0
    # 155 tokens are held, of 150 there is a copy, and 4 + 180 come behind: more than 420.
    result = served.engine.ask(fuse(prompt, recompute=0.2, pin=is_pinned, patches=patches), 180)
    report = check_flat(served, prompt, result, "too small" if is_pinned else "")
    assert report["shifted"] == 0


@pytest.mark.parametrize("select", SELECTORS)
@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_settling_request_that_fails(
    served: Served, rng: random.Random, when: str, is_pinned: bool, select: str
) -> None:
    prompt = forest_prompt(rng)
    asked = fuse(prompt, select=select, recompute=0.1, pin=is_pinned)
    warm_up(served, rng, prompt)
    result = served.engine.ask(asked, 6, rid=f"fault:settle:{when}:{select}")
    report = check_flat(served, prompt, result, "could not be settled")
    assert (report["see"], report["differs"]) == ("flat", [])
    again = served.engine.ask(fuse(prompt, select=select, recompute=0.1))["meta_info"]["depcache"]
    assert (again["see"], again["fallback_reason"]) == ("fused", None)


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_body_that_cannot_be_run_by_itself(
    served: Served, rng: random.Random, is_pinned: bool
) -> None:
    system = [BODILESS_TOKEN, *random_tokens(rng, 4)]
    prompt = TreePrompt(system, random_forest(rng, 6), random_tokens(rng, 4))
    asked = fuse(prompt, select="deviation", recompute=0.1, pin=is_pinned)
    warm_up(served, rng, prompt)
    report = check_flat(served, prompt, served.engine.ask(asked, 6), "could not be settled")
    assert (report["see"], report["differs"]) == ("flat", [])
    again = served.engine.ask(fuse(prompt, recompute=0.1))["meta_info"]["depcache"]
    assert (again["see"], again["fallback_reason"]) == ("fused", None)


@pytest.mark.parametrize("select", SELECTORS)
@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_settling_request_that_is_aborted(
    served: Served, rng: random.Random, passes: Passes, is_pinned: bool, select: str
) -> None:
    aborted: list[str] = []

    async def abort(rid: str) -> None:
        aborted.append(rid)
        served.engine.abort(rid)

    prompt = TreePrompt(
        random_tokens(rng, 5), [chain_tree(rng, 18, 20 + i) for i in range(6)], [7, 8, 9]
    )
    warm_up(served, rng, prompt)
    passes.during = abort
    result = served.engine.ask(fuse(prompt, select=select, recompute=0.1, pin=is_pinned))
    assert len(aborted) == 1
    report = check_flat(served, prompt, result, "could not be settled")
    assert (report["see"], report["differs"]) == ("flat", [])
    passes.during = Passes().during
    chosen = list(context(prompt))[::4]
    again = served.engine.ask(fuse(prompt, chosen))["meta_info"]["depcache"]
    assert (again["see"], again["fallback_reason"]) == ("fused", None)


def warm_up(served: Served, rng: random.Random, prompt: TreePrompt) -> None:
    """Has the rows expected again, so that settling them is the cheaper way without a pin, and
    empties the cache."""
    for _ in range(8):
        trees = rng.sample(prompt.trees, len(prompt.trees))
        served.engine.ask(fuse(TreePrompt(prompt.system, trees, random_tokens(rng, 3))), 1)
    served.engine.flush()
