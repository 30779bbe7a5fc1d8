# SPDX-License-Identifier: Apache-2.0
"""A server that gives up settling: an engine of its own, since one is alive at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.engine import start_engine
from tests.helpers.fused_oracle import fuse
from tests.helpers.prompts import TreePrompt, plain, random_forest, random_tokens

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
