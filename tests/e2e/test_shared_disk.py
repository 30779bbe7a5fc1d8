# SPDX-License-Identifier: Apache-2.0
"""Two servers on one disk folder: each finds what the other wrote, and one may die suddenly."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.shared_folder import DISK_BYTES, Fleet, disk_of, make_prompt, wait_for
from tests.helpers.ends import SLOWEST_S
from tests.helpers.prompts import TreePrompt
from tests.helpers.server import generate

pytestmark = pytest.mark.sglang


@pytest.fixture
def fleet(model_path: Callable[[str], Path], tmp_path: Path) -> Fleet:
    return Fleet(model_path("llama_gqa"), tmp_path)


@pytest.fixture
def stacks() -> Iterator[list[ExitStack]]:
    with ExitStack() as one, ExitStack() as other:
        yield [one, other]


def loaded(client: httpx.Client, prompt: TreePrompt) -> tuple[int, int]:
    """(tokens from disk, tokens computed) of the context"""
    report = generate(client, prompt)["meta_info"]["depcache"]
    return report["loaded"], report["missed"]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_each_finds_what_the_other_wrote_and_takes_it_over_when_it_is_killed(
    fleet: Fleet, stacks: list[ExitStack], num_ranks: int
) -> None:
    rng = random.Random(1)
    prompts = [make_prompt(rng) for _ in range(6)]
    one, other = (fleet.start(stack, num_ranks) for stack in stacks)
    answers = [generate(one, prompt)["output_ids"] for prompt in prompts[:4]]
    stored = wait_for(one, lambda disk: not disk["waiting_tokens"])
    assert stored["stored_tokens"] > 0
    wait_for(other, lambda disk: disk["values"] == stored["values"])

    for prompt, answer in zip(prompts[:2], answers, strict=False):
        result = generate(other, prompt)
        assert result["output_ids"] == answer
        report = result["meta_info"]["depcache"]
        assert report["loaded"] == report["context_tokens"] == prompt.num_context
    generate(other, prompts[4])  # and the other way round
    wait_for(other, lambda disk: not disk["waiting_tokens"])
    wait_for(one, lambda disk: disk["values"] == disk_of(other)["values"])
    assert loaded(one, prompts[4]) == (prompts[4].num_context, 0)
    assert disk_of(one)["neighbours"] == disk_of(other)["neighbours"] == 1

    used = disk_of(one)["used_bytes"] + disk_of(other)["used_bytes"]
    stacks[0].close()  # SIGKILL
    wait_for(other, lambda disk: not disk["neighbours"])
    assert disk_of(other)["used_bytes"] == used
    assert loaded(other, prompts[2]) == (prompts[2].num_context, 0)
    one = fleet.start(stacks[0], num_ranks)
    assert loaded(one, prompts[3]) == (prompts[3].num_context, 0)
    assert loaded(one, prompts[4]) == (prompts[4].num_context, 0)
    assert disk_of(one)["used_bytes"] == 0  # all of it is the survivor's


def test_both_keep_one_limit_and_share_it(fleet: Fleet, stacks: list[ExitStack]) -> None:
    rng = random.Random(2)
    one, other = (fleet.start(stack) for stack in stacks)
    for client in (one, other):
        wait_for(client, lambda disk: disk["neighbours"] == 1)

    def fill(client: httpx.Client, share: float) -> int:
        deadline = time.monotonic() + SLOWEST_S
        while disk_of(client)["used_bytes"] < share * DISK_BYTES:
            generate(client, make_prompt(rng))
            assert fleet.num_bytes <= DISK_BYTES
            assert time.monotonic() < deadline, disk_of(client)
        return int(wait_for(client, lambda disk: not disk["waiting_tokens"])["used_bytes"])

    held = fill(one, 0.9)
    # What is written between two looks, about a second, is not known to the other.
    wait_for(other, lambda disk: disk["neighbour_bytes"] >= held)
    fill(other, 0.4)
    for client in (one, other):
        disk = wait_for(client, lambda disk: disk["used_bytes"] <= disk["limit_bytes"])
        assert disk["used_bytes"] >= 0.4 * DISK_BYTES
    assert disk_of(one)["evicted_tokens"] > 0


def complete(client: httpx.Client, prompt: TreePrompt, salt: str) -> dict[str, Any]:
    """The report on a prompt of a tenant, which only the OpenAI routes have."""
    body = {"model": "m", "prompt": prompt.tokens, "max_tokens": 2, "temperature": 0}
    body |= {"custom_params": prompt.params(), "cache_salt": salt}
    reply = client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()["metadata"]["depcache"]


def test_a_flood_leaves_a_tenants_share_on_the_common_disk(
    fleet: Fleet, stacks: list[ExitStack]
) -> None:
    rng = random.Random(3)
    shares = json.dumps({"quiet": 0.3})
    one, other = (fleet.start(stack, DEPCACHE_TENANT_SHARES=shares) for stack in stacks)
    kept, lost = make_prompt(rng), make_prompt(rng)
    complete(one, kept, "quiet")
    complete(one, lost, "nobody")
    stored = wait_for(one, lambda disk: not disk["waiting_tokens"])
    wait_for(other, lambda disk: disk["values"] == stored["values"])

    deadline = time.monotonic() + SLOWEST_S
    for client in (one, other):
        while disk_of(client)["evicted_tokens"] < DISK_BYTES // 1000:
            complete(client, make_prompt(rng), "loud")
            assert time.monotonic() < deadline, disk_of(client)
    for client in (one, other):
        assert disk_of(client)["evicted_within_share_tokens"] == 0
    # The other server has never had them, so they come from the folder or are computed.
    report = complete(other, kept, "quiet")
    assert (report["loaded"], report["missed"]) == (kept.num_context, 0)
    assert complete(other, lost, "nobody")["missed"] > 0
