# SPDX-License-Identifier: Apache-2.0
"""A call reads whole answers only; a 5xx is a fault unless stock SGLang has it too."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from eval.soak.calls import Caller, Reply, answer_of_choice, read_generated, without_dependencies
from eval.soak.judge import Answer
from eval.soak.ledger import Ledger


def test_a_stream_that_breaks_off_is_no_answer() -> None:
    event = 'data: {"meta_info": {}, "output_ids": [1], "index": 0}\n\n'
    assert read_generated(event + "data: [DONE]\n\n", is_stream=True)[0]["output_ids"] == [1]
    with pytest.raises(ValueError, match="no end"):
        read_generated(event, is_stream=True)
    with pytest.raises(ValueError, match="meta_info"):
        read_generated('data: {"error": 1}\n\ndata: [DONE]\n', is_stream=True)


def test_a_twin_without_dependency_data_is_made_for_sglangs_routes_only() -> None:
    body = '{"input_ids": [1], "sampling_params": {"n": 1, "custom_params": {"a": 1}}}'
    twin = without_dependencies("/generate", body)
    assert twin is not None
    assert json.loads(twin) == {"input_ids": [1], "sampling_params": {"n": 1}}
    assert without_dependencies("/depcache/explain", body) is None
    assert without_dependencies("/generate", '{"input_ids": [1]}') is None
    assert without_dependencies("/generate", "[[") is None


@pytest.mark.parametrize("name", ["token_ids", "response_token_ids"])
def test_a_choice_is_read_on_both_releases(name: str) -> None:
    content = [{"logprob": -0.5}, {"logprob": -0.25}]
    choice = {"logprobs": {"content": content}, name: [7, 8]}
    answer = answer_of_choice(choice, 2)
    assert answer == Answer([7, 8], [[(-0.5, 7)], [(-0.25, 8)]], 2, 0)


class FakeServer:
    """What a caller asks of a server; it always runs."""

    url = "http://test"
    is_ending = False
    is_running = True


def call(tmp_path: Path, status: int, body: str, **answers: int) -> tuple[Reply | None, Ledger]:
    """One request to a server that answers so, and otherwise to a body without `custom_params`."""
    ledger = Ledger(tmp_path / "faults.jsonl")

    def answer(request: httpx.Request) -> httpx.Response:
        has_dependencies = b"custom_params" in request.content
        return httpx.Response(status if has_dependencies else answers["plain"], text="{}")

    async def run() -> Reply | None:
        caller = Caller(FakeServer(), ledger)  # pyright: ignore[reportArgumentType]
        await caller.close()
        caller._http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        return await caller.send("kind", "POST", "/generate", content=body)

    return asyncio.run(run()), ledger


def test_a_5xx_is_a_fault_unless_stock_has_it_too(tmp_path: Path) -> None:
    body = '{"text": "x", "custom_params": {"depcache_version": 1}}'
    reply, ledger = call(tmp_path, 500, body, plain=200)
    assert reply is not None and reply.status == 500
    assert ledger.num_faults("5xx") == 1
    kept = json.loads((tmp_path / "faults.jsonl").read_text().splitlines()[0])
    assert kept["request"]["body"] == body
    _, ledger = call(tmp_path, 500, body, plain=500)
    assert (ledger.num_faults("5xx"), len(ledger.stock)) == (0, 1)
    _, ledger = call(tmp_path, 400, body, plain=200)
    assert (len(ledger.faults), sum(ledger.refusals.values())) == (0, 1)
