# SPDX-License-Identifier: Apache-2.0
"""A server that gives up settling: an engine of its own, since one is alive at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.engine import start_engine
from tests.helpers.forked import PREPARE
from tests.helpers.fused_oracle import FusedOracle, fuse
from tests.helpers.judge import worst_error
from tests.helpers.oracle import Oracle
from tests.helpers.prompts import TreePrompt, plain, random_forest, random_tokens
from tests.helpers.tolerance import ORACLE_LOGPROB

POOL_TOKENS = 420

pytestmark = pytest.mark.sglang


def test_rows_that_are_not_settled_in_time_give_the_flat_prompt(
    model_path: Callable[[str], Path],
) -> None:
    rng = random.Random(11)
    prompt = TreePrompt(random_tokens(rng, 5), random_forest(rng, 4), random_tokens(rng, 4))
    with start_engine(
        model_path("llama_gqa"), environment={"DEPCACHE_SETTLE_TIMEOUT_S": "1e-9"}
    ) as engine:
        late = engine.ask(fuse(prompt, pin=False))
        report = late["meta_info"]["depcache"]
        assert (report["see"], report["differs"]) == ("flat", [])
        assert "not settled in time" in report["fallback_reason"]
        assert late["output_ids"] == engine.ask(plain(prompt.tokens))["output_ids"]
        pinned = engine.ask(fuse(prompt))["meta_info"]["depcache"]
        assert pinned["see"] == "fused" and pinned["settled"] > 0
        engine.check_conservation()


def test_a_slow_host_gives_the_flat_prompt_and_a_pinned_request_waits_for_it(
    model_path: Callable[[str], Path], oracle_of: Callable[[str], Oracle]
) -> None:
    rng = random.Random(13)
    system, trees = random_tokens(rng, 5), random_forest(rng, 5)
    environment = {
        PREPARE: "tests.helpers.slow_host",  # each load takes 3 seconds
        "DEPCACHE_SETTLE_TIMEOUT_S": "1",
        "DEPCACHE_HOST_GB": "0.02",
        "DEPCACHE_LOAD_POLICY": "always",
    }
    with start_engine(
        model_path("llama_gqa"), environment=environment, max_total_tokens=POOL_TOKENS
    ) as engine:
        oracle = FusedOracle(oracle_of("llama_gqa"))

        def fresh() -> TreePrompt:
            return TreePrompt(system, rng.sample(trees, 5), random_tokens(rng, 4))

        for _ in range(8):  # rows that come again, so that settling them is the cheaper way
            engine.ask(fuse(fresh()), 1)
        for is_pinned in (False, True):
            for _ in range(4):
                engine.ask(plain(random_tokens(rng, 300)), 1)
            prompt = fresh()
            chosen = list(range(len(system), prompt.num_context))[::4]
            result = engine.ask(fuse(prompt, chosen, pin=is_pinned))
            report = result["meta_info"]["depcache"]
            if is_pinned:
                assert (report["see"], report["fallback_reason"]) == ("fused", None)
            else:
                assert (report["see"], report["differs"]) == ("flat", [])
                assert "not settled in time" in report["fallback_reason"]
                chosen = list(range(prompt.num_context))
            expected = oracle.score(prompt, chosen, result["output_ids"])
            assert worst_error(result, expected) < ORACLE_LOGPROB
        assert engine.check_conservation()["host"]["loaded_tokens"] > 0
