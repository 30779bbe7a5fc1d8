# SPDX-License-Identifier: Apache-2.0
"""The switch of the experiment "w/o GKVR": moved keys keep their old rotation, and only they."""

from __future__ import annotations

import random

import pytest

from tests.e2e.served import EngineCase, Served
from tests.helpers.judge import worst_error
from tests.helpers.prompts import LAYOUTS, TreePrompt, random_forest, random_tokens
from tests.helpers.tolerance import ORACLE_LOGPROB, SENSITIVE_LOGPROB

pytestmark = pytest.mark.sglang

CASE = EngineCase(
    "without_reencoding",
    "llama_gqa",
    "auto",
    chunk=2048,
    environment={"DEPCACHE_REENCODE_POSITIONS": "false"},
)


@pytest.fixture(scope="module")
def case() -> EngineCase:
    return CASE


@pytest.mark.parametrize("layout", LAYOUTS)
def test_moved_keys_keep_their_rotation(served: Served, layout: str) -> None:
    from tests.helpers.oracle import ShiftOracle

    rng = random.Random(5)
    parts = random_tokens(rng, 12), random_forest(rng, 5), random_tokens(rng, 9)
    first = TreePrompt(*parts, layout)
    second = TreePrompt(parts[0], parts[1][::-1], parts[2], layout)
    rotated, still = ShiftOracle(served.oracle), ShiftOracle(served.oracle)
    still.inv_freq = 0 * still.inv_freq
    for shifts in (rotated, still):
        shifts.score(first, served.engine.ask(first)["output_ids"])
    result = served.engine.ask(second)
    logprobs, reuse = still.score(second, result["output_ids"])
    assert worst_error(result, logprobs) < ORACLE_LOGPROB
    assert bool(reuse.shifted) == (layout != "tree")
    moved, _ = rotated.score(second, result["output_ids"])
    difference = float((moved - logprobs).abs().max())
    assert (difference > SENSITIVE_LOGPROB) == bool(reuse.shifted)
