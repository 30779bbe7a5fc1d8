# SPDX-License-Identifier: Apache-2.0
"""A thousand requests that are aborted while they wait leave nothing behind in the cache."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.ends import SLOWEST_S
from tests.helpers.prompts import TreePrompt, random_forest, random_tokens
from tests.helpers.server import generate, start_server

pytestmark = pytest.mark.sglang

NUM_REQUESTS = 1000


async def ask_and_abort(url: str, prompts: list[TreePrompt]) -> Counter[str]:
    """Ask all at once, abort all when most of them wait; what became of them."""
    limits = httpx.Limits(max_connections=NUM_REQUESTS + 2)
    async with httpx.AsyncClient(base_url=url, timeout=SLOWEST_S, limits=limits) as client:

        async def ask(prompt: TreePrompt) -> str:
            sampling: dict[str, Any] = {"max_new_tokens": 200, "ignore_eos": True}
            sampling["custom_params"] = prompt.params()
            body = {"input_ids": prompt.tokens, "sampling_params": sampling}
            reply = await client.post("/generate", json=body)
            if reply.status_code != 200:
                return "refused" if "abort" in reply.text.lower() else reply.text
            return reply.json()["meta_info"]["finish_reason"]["type"]

        work = [asyncio.create_task(ask(prompt)) for prompt in prompts]
        deadline = time.monotonic() + SLOWEST_S
        while (await client.get("/depcache/stats")).json()["waiting_requests"] < NUM_REQUESTS // 2:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        while not all(task.done() for task in work):
            assert time.monotonic() < deadline
            await client.post("/abort_request", json={"abort_all": True})
            await asyncio.wait(work, timeout=0.5)
        return Counter(task.result() for task in work)


def test_what_waits_and_is_aborted_leaves_nothing(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    rng = random.Random(3)
    system, pool = random_tokens(rng, 9), random_forest(rng, 40)
    layouts = ("tree", "staggered", "sequential")
    prompts = [
        TreePrompt(system, rng.sample(pool, 4), random_tokens(rng, 4), rng.choice(layouts))
        for _ in range(NUM_REQUESTS)
    ]
    environment = {"DEPCACHE_QUEUE_ORDER": "lsp"}
    flags = ("--max-total-tokens", "2000", "--radix-eviction-policy", "lacr")
    flags += ("--max-running-requests", "4")
    log = tmp_path / "log.txt"
    with start_server(model_path("llama_gqa"), *flags, log=log, environment=environment) as client:
        ends = asyncio.run(ask_and_abort(str(client.base_url), prompts))
        assert set(ends) <= {"abort", "refused", "length"}
        assert ends["length"] < NUM_REQUESTS // 2

        # Whoever comes next is served, and what it does not use is only what is cached.
        answers = [generate(client, prompts[0])["output_ids"] for _ in range(2)]
        assert answers[0] == answers[1]
        stats = client.get("/depcache/stats").json()
        device = stats["tiers"]["device"]
        assert stats["waiting_requests"] == device["locked_tokens"] == 0
        assert stats["known_nodes"] == device["nodes"]
