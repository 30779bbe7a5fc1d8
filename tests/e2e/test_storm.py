# SPDX-License-Identifier: Apache-2.0
"""Promises P2, P3 and P6 in a storm: a real server, a tiny pool, clients that lose patience.

They close their connections at any millisecond, abort, retry and send nonsense. SGLang's
strict check runs on every step and ends the server on a leak.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.storm import Bystander, Storm, World, record_bystanders
from tests.helpers.ends import SLOWEST_S
from tests.helpers.server import start_server

POOL_TOKENS = 420
CHUNK_TOKENS = 64

ENVIRONMENT = {
    "DEPCACHE_HOST_GB": "0.002",  # about 1,000 tokens: less than what is evicted
    "DEPCACHE_LOAD_POLICY": "always",  # computing a tiny model is faster
    # After so many seconds SGLang looks whether a client that waits is still there.
    "SGLANG_REQUEST_STATE_WAIT_TIMEOUT": "1",
    # A full pool alone retracts too, but how often depends on the machine.
    "SGLANG_TEST_RETRACT": "1",
    "SGLANG_TEST_RETRACT_INTERVAL": "8",  # steps
}
FLAGS = (
    *("--max-total-tokens", str(POOL_TOKENS)),
    *("--chunked-prefill-size", str(CHUNK_TOKENS)),
    *("--max-running-requests", "12"),
    *("--radix-eviction-policy", "lacr_adaptive"),
    # SGLang admits as if answers were short, so that running requests must be retracted.
    *("--schedule-conservativeness", "0.2"),
)

pytestmark = pytest.mark.sglang


def check_bystanders(client: httpx.Client, bystanders: list[Bystander]) -> None:
    for bystander in bystanders:
        response = client.post("/generate", json=bystander.body)
        assert response.status_code == 200, response.text
        assert response.json()["output_ids"] == bystander.tokens


def wait_for_rest(client: httpx.Client) -> dict[str, Any]:
    """The cache when nothing runs: nothing is held, no slot is missing. Returns its state."""
    deadline = time.monotonic() + SLOWEST_S
    while True:
        cache = client.get("/depcache/status").json()["cache"]
        stats = client.get("/depcache/stats").json()
        disk = cache["disk"] or {"waiting_requests": 0, "open_operations": 0}
        held = {
            "locked": cache["locked_tokens"],
            "private": cache["private_tokens"],
            "neither free nor cached": cache["capacity_tokens"]
            - cache["free_tokens"]
            - cache["cached_tokens"],
            "locked, by the stats": stats["tiers"]["device"]["locked_tokens"],
            "waiting requests": stats["waiting_requests"],
            "waiting for the disk": disk["waiting_requests"],
            "on their way to or from the disk": disk["open_operations"],
            "of the host neither free nor cached": cache["host"]["capacity_tokens"]
            - cache["host"]["free_tokens"]
            - cache["host"]["cached_tokens"],
        }
        if not any(held.values()):
            return cache
        assert time.monotonic() < deadline, f"held though nothing runs: {held}"
        time.sleep(0.1)


def check_tree_is_unlocked(client: httpx.Client) -> None:
    nodes = client.get("/depcache/tree", params={"limit": 10_000}).json()["nodes"]
    assert nodes
    assert [node for node in nodes if node["locks"] or node["waiting"]] == []


def start(
    model: Path, log: Path, environment: dict[str, str] | None = None
) -> AbstractContextManager[httpx.Client]:
    folder = {"DEPCACHE_DISK_FOLDER": str(log.parent / "disk")}
    settings = {**ENVIRONMENT, **folder, **(environment or {})}
    return start_server(model, *FLAGS, log=log, environment=settings)


def run_storm(
    client: httpx.Client,
    log: Path,
    *,
    seed: int,
    num_clients: int,
    num_requests: int,
) -> Counter[str]:
    """A storm, and everything that must hold during and after it. Returns what was seen."""
    rng = random.Random(seed)
    world = World.make(rng)
    bystanders = record_bystanders(client, world, rng, num=8)
    assert len({tuple(bystander.tokens) for bystander in bystanders}) == len(bystanders)
    evicted_before = wait_for_rest(client)["evicted_tokens"]
    storm = Storm(str(client.base_url), world, bystanders, seed)
    storm.run(num_clients, num_requests)
    assert not storm.troubles, f"{storm.troubles[0]}\n{log.read_text(errors='replace')[-3000:]}"

    cache = wait_for_rest(client)
    check_tree_is_unlocked(client)
    check_bystanders(client, bystanders)
    wait_for_rest(client)
    assert client.post("/depcache/flush", params={"timeout": SLOWEST_S}).status_code == 200
    assert wait_for_rest(client)["cached_tokens"] == 0
    check_bystanders(client, bystanders)
    if cache["disk"] is not None:
        storm.seen["from disk"] = cache["disk"]["loaded_tokens"]
    storm.seen["evicted"] = cache["evicted_tokens"] - evicted_before
    return storm.seen


def check_that_it_stormed(seen: Counter[str], bystander_answers: int, evicted: int) -> None:
    """What the storm is there to bring about did happen."""
    assert seen["bystander answers"] >= bystander_answers, seen
    assert seen["evicted"] > evicted, seen
    happened = ("answers", "closed", "aborted", "malformed", "retractions")
    tiers = ("shared", "shifted", "loaded", "missed")
    assert all(seen[name] for name in (*happened, *tiers)), seen


def test_a_storm_changes_no_bystanders_token_and_leaves_nothing_held(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    log = tmp_path / "log.txt"
    with start(model_path("llama_gqa"), log) as client:
        seen = run_storm(client, log, seed=7, num_clients=32, num_requests=8)
    check_that_it_stormed(seen, bystander_answers=16, evicted=5 * POOL_TOKENS)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_long_storm_with_an_order_of_our_own(
    model_path: Callable[[str], Path], tmp_path: Path, seed: int
) -> None:
    # The disk holds less than the host, because the paths stand in every value.
    environment = {"DEPCACHE_QUEUE_ORDER": "lsp", "DEPCACHE_DISK_GB": "0.002"}
    log = tmp_path / "log.txt"
    with start(model_path("llama_gqa"), log, environment) as client:
        seen = run_storm(client, log, seed=seed, num_clients=48, num_requests=24)
    assert seen["from disk"]
    check_that_it_stormed(seen, bystander_answers=32, evicted=30 * POOL_TOKENS)
