# SPDX-License-Identifier: Apache-2.0
"""Promise P4: what was cached under one salt or extra key is used under no other.

On the HTTP routes, where a tenant's salt comes in.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.prompts import TreePrompt, plain, random_forest, random_tokens
from tests.helpers.server import start_server

pytestmark = pytest.mark.sglang

every_layout = pytest.mark.parametrize("layout", ["tree", "staggered", "sequential"])

Ask = Callable[..., tuple[int, dict[str, Any] | None]]
"""(client, prompt, **salts) -> (cached tokens, report on reuse)"""

_first_tokens = itertools.count(16)


@pytest.fixture(scope="module")
def client(
    model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    log = tmp_path_factory.mktemp("server") / "log.txt"
    with start_server(model_path("llama_gqa"), log=log) as client:
        yield client


@pytest.fixture
def rng() -> random.Random:
    return random.Random(13)


def post(client: httpx.Client, route: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = client.post(route, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def params_of(prompt: TreePrompt) -> dict[str, Any]:
    params = prompt.params()
    return {} if params is None else {"custom_params": params}


def generate(client: httpx.Client, prompt: TreePrompt, **salts: str) -> Any:
    sampling = {"max_new_tokens": 2, "temperature": 0, "ignore_eos": True, **params_of(prompt)}
    body = {"input_ids": prompt.tokens, "sampling_params": sampling, **salts}
    meta = post(client, "/generate", body)["meta_info"]
    return meta["cached_tokens"], meta.get("depcache")


def complete(client: httpx.Client, prompt: TreePrompt, **salts: str) -> Any:
    body = {"model": "m", "prompt": prompt.tokens, "max_tokens": 2, **params_of(prompt), **salts}
    return _cached_and_report(post(client, "/v1/completions", body))


def chat(client: httpx.Client, prompt: TreePrompt, **salts: str) -> Any:
    messages = [{"role": "user", "content": "x"}]
    body = {"model": "m", "messages": messages, "input_ids": prompt.tokens, "max_tokens": 2}
    return _cached_and_report(
        post(client, "/v1/chat/completions", {**body, **params_of(prompt), **salts})
    )


def _cached_and_report(reply: dict[str, Any]) -> Any:
    details = reply["usage"].get("prompt_tokens_details") or {}
    return details.get("cached_tokens") or 0, (reply.get("metadata") or {}).get("depcache")


openai_routes = pytest.mark.parametrize("ask", [complete, chat])
every_route = pytest.mark.parametrize("ask", [generate, complete, chat])


def make_prompt(rng: random.Random, layout: str) -> TreePrompt:
    """Begins with a token of its own, so that no test finds what another one cached."""
    system = [next(_first_tokens), *random_tokens(rng, 6)]
    return TreePrompt(system, random_forest(rng, 4), random_tokens(rng, 5), layout)


@every_layout
@every_route
def test_an_extra_key_finds_its_own_and_nothing_else(
    client: httpx.Client, layout: str, ask: Ask, rng: random.Random
) -> None:
    prompt = make_prompt(rng, layout)
    for salts in ({}, {"extra_key": "a"}, {"extra_key": "b"}):
        cached, report = ask(client, prompt, **salts)
        assert cached == 0
        assert report is not None
        assert report["missed"] == prompt.num_context
    for salts in ({}, {"extra_key": "a"}, {"extra_key": "b"}):
        cached, report = ask(client, prompt, **salts)
        assert cached == prompt.num_context
        assert report is not None
        assert report["shared"] == prompt.num_context


@every_layout
@openai_routes
def test_a_cache_salt_finds_its_own_and_nothing_else(
    client: httpx.Client, layout: str, ask: Ask, rng: random.Random
) -> None:
    prompt = make_prompt(rng, layout)
    tenants = [{"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "a", "extra_key": "b"}, {}]
    assert [ask(client, prompt, **salts)[0] for salts in tenants] == [0] * 4
    assert [ask(client, prompt, **salts)[0] for salts in tenants] == [prompt.num_context] * 4


@every_route
def test_plain_prompts_are_kept_apart_as_well_and_share_within_a_key(
    client: httpx.Client, ask: Ask, rng: random.Random
) -> None:
    tree = make_prompt(rng, "tree")
    path = tree.system + tree.trees[0][0]
    assert ask(client, tree, extra_key="a")[0] == 0
    assert ask(client, plain([*path, 5]), extra_key="b")[0] == 0
    assert ask(client, plain([*path, 6]))[0] == 0
    assert ask(client, plain([*path, 7]), extra_key="a")[0] == len(path)


@every_layout
def test_layouts_are_kept_apart(client: httpx.Client, layout: str, rng: random.Random) -> None:
    """Their rows have other positions, or other distances to what they depend on."""
    prompt = make_prompt(rng, layout)
    for other in {"tree", "staggered", "sequential"} - {layout}:
        parts = prompt.system, prompt.trees, prompt.task
        assert generate(client, TreePrompt(*parts, other))[0] == 0
    assert generate(client, prompt)[0] == 0


def test_the_routes_share_what_one_of_them_cached(client: httpx.Client, rng: random.Random) -> None:
    prompt = make_prompt(rng, "tree")
    generate(client, prompt, extra_key="t")
    for ask in (generate, complete, chat):
        assert ask(client, prompt, extra_key="t")[0] == prompt.num_context
