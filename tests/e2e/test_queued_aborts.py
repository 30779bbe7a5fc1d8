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


NUM_WAITING = 950
"""So many of them wait when all are aborted; the others run, or have ended by then."""

SETTINGS = {
    "DEPCACHE_QUEUE_ORDER": "lsp",
    "DEPCACHE_HOST_GB": "0.002",  # about 1,000 tokens, fewer than are on disk
    "DEPCACHE_DISK_GB": "0.1",
    "DEPCACHE_WRITE_POLICY": "write_through",
    "DEPCACHE_LOAD_POLICY": "always",  # computing a tiny model is faster
}
FLAGS = [
    *("--max-total-tokens", "2000"),
    *("--radix-eviction-policy", "lacr"),
    *("--max-running-requests", "2"),
]


async def ask_and_abort(url: str, prompts: list[TreePrompt]) -> Counter[str]:
    """Ask all at once, abort all when nearly all of them wait; what became of them."""
    limits = httpx.Limits(max_connections=NUM_REQUESTS + 2)
    async with httpx.AsyncClient(base_url=url, timeout=SLOWEST_S, limits=limits) as client:

        async def ask(prompt: TreePrompt) -> str:
            sampling: dict[str, Any] = {"max_new_tokens": 800, "ignore_eos": True}
            sampling["custom_params"] = prompt.params()
            body = {"input_ids": prompt.tokens, "sampling_params": sampling}
            reply = await client.post("/generate", json=body)
            if reply.status_code != 200:
                return "refused" if "abort" in reply.text.lower() else reply.text
            return reply.json()["meta_info"]["finish_reason"]["type"]

        work = [asyncio.create_task(ask(prompt)) for prompt in prompts]
        deadline = time.monotonic() + SLOWEST_S
        while (await client.get("/depcache/stats")).json()["waiting_requests"] < NUM_WAITING:
            assert time.monotonic() < deadline
            assert sum(task.done() for task in work) <= NUM_REQUESTS - NUM_WAITING
            await asyncio.sleep(0.05)
        while not all(task.done() for task in work):
            assert time.monotonic() < deadline
            await client.post("/abort_request", json={"abort_all": True})
            await asyncio.wait(work, timeout=0.5)
        return Counter(task.result() for task in work)


def put_on_disk(client: httpx.Client, prompts: list[TreePrompt]) -> None:
    """Everything that the prompts need is on disk, and nowhere else."""
    for prompt in prompts:
        generate(client, prompt, 1)
    settle(client)
    flush(client, keep_disk=True)


def flush(client: httpx.Client, **options: Any) -> None:
    reply = client.post("/depcache/flush", params={"timeout": SLOWEST_S, **options})
    assert reply.status_code == 200, reply.text


def settle(client: httpx.Client) -> dict[str, Any]:
    """Wait until the disk has nothing to do and no request holds a row; the cache's state."""
    deadline = time.monotonic() + SLOWEST_S
    while True:
        state = client.get("/depcache/status").json()["cache"]
        disk = state["disk"]
        open_work = disk["open_operations"] + disk["waiting_tokens"] + disk["waiting_requests"]
        if not open_work + state["locked_tokens"] + state["private_tokens"]:
            return state
        assert time.monotonic() < deadline, state
        time.sleep(0.05)


def test_what_waits_and_is_aborted_leaves_nothing(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    rng = random.Random(3)
    system, pool = random_tokens(rng, 9), random_forest(rng, 60)
    layouts = ("tree", "staggered", "sequential")
    prompts = [
        TreePrompt(system, rng.sample(pool, 4), random_tokens(rng, 4), rng.choice(layouts))
        for _ in range(NUM_REQUESTS)
    ]
    environment = SETTINGS | {"DEPCACHE_DISK_FOLDER": str(tmp_path / "disk")}
    model, log = model_path("llama_gqa"), tmp_path / "log.txt"
    with start_server(model, *FLAGS, log=log, environment=environment) as client:
        put_on_disk(client, prompts[::10])
        ends = asyncio.run(ask_and_abort(str(client.base_url), prompts))
        assert ends["abort"] + ends["refused"] >= NUM_WAITING, ends
        assert set(ends) <= {"abort", "refused", "length"}

        state = settle(client)
        assert state["free_tokens"] + state["cached_tokens"] == state["capacity_tokens"]
        assert state["disk"]["loaded_tokens"] > 0  # some waited for the disk
        assert client.get("/depcache/stats").json()["waiting_requests"] == 0
        nodes = client.get("/depcache/tree", params={"limit": 10_000}).json()["nodes"]
        assert nodes and not any(node["waiting"] or node["locks"] for node in nodes)

        # Whoever comes next is served, and what it does not use is only what is cached.
        flush(client)
        answers = [generate(client, prompts[0])["output_ids"] for _ in range(2)]
        assert answers[0] == answers[1]
        settle(client)
        stats = client.get("/depcache/stats").json()
        device = stats["tiers"]["device"]
        assert stats["waiting_requests"] == device["locked_tokens"] == 0
        assert stats["known_nodes"] == device["nodes"]
