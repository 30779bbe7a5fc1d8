# SPDX-License-Identifier: Apache-2.0
"""Ranks that differ end the server with a sentence, before a batch runs that would be wrong."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.helpers.diverge import MARK
from tests.helpers.ends import SLOWEST_S
from tests.helpers.forked import PREPARE
from tests.helpers.prompts import TreePrompt, random_forest, random_tokens
from tests.helpers.server import generate, start_server

pytestmark = pytest.mark.sglang


def test_a_rank_that_lost_its_cache_is_found_out(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    rng = random.Random(5)
    log = tmp_path / "log.txt"
    environment = {PREPARE: "tests.helpers.diverge"}
    system, trees = random_tokens(rng, 9), random_forest(rng, 4)
    with start_server(
        model_path("llama_gqa"), "--tp-size", "2", log=log, environment=environment
    ) as client:
        first, second = (generate(client, TreePrompt(system, trees, [7, 8])) for _ in range(2))
        assert first["output_ids"] == second["output_ids"]
        assert second["meta_info"]["depcache"]["missed"] == 0
        with pytest.raises(httpx.HTTPError):
            generate(client, TreePrompt(system, trees, [7, MARK]))
        deadline = time.monotonic() + SLOWEST_S
        while "has decided otherwise than rank 0 about what is cached" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)
