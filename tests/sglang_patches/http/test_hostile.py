# SPDX-License-Identifier: Apache-2.0
"""One request, however hostile, ends alone: the server answers the next one (P6)."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import HTTPException

from tests.sglang_patches.http.test_malformed import (
    TOKENS,
    assert_lives,
    ids_form,
    message_of,
    text_form,
    with_ids,
)
from tests.sglang_patches.http.test_routes import ADMIN, chat, fresh_paths, text

pytestmark = pytest.mark.sglang

QUESTIONS = ("/depcache/explain", "/depcache/prefetch", "/depcache/invalidate")
NO_TEXTS = (["a"], [], {"a": 1}, 5, 1.5, True, [["a"]])


def post(served: Any, route: str, body: Any) -> Any:
    return served.client.post(route, json=body, headers=ADMIN if "invalidate" in route else None)


def assert_refused(served: Any, response: Any, match: str = "") -> None:
    assert response.status_code == 400, response.text[:500]
    message = message_of(response)
    assert match in message
    assert 10 < len(message) < 1000
    assert "Traceback" not in message
    assert_lives(served)


@pytest.mark.parametrize("value", NO_TEXTS, ids=repr)
@pytest.mark.parametrize("route", [*QUESTIONS, "/generate"])
def test_an_extra_key_that_is_no_text_is_refused(served, route: str, value: Any) -> None:
    assert_refused(served, post(served, route, with_ids(ids_form(), extra_key=value)))


@pytest.mark.parametrize("value", NO_TEXTS, ids=repr)
@pytest.mark.parametrize("name", ["cache_salt", "extra_key"])
@pytest.mark.parametrize(
    "route", [*QUESTIONS, "/v1/chat/completions", "/v1/completions"], ids=lambda r: r[4:]
)
def test_a_salt_that_is_no_text_is_refused(served, route: str, name: str, value: Any) -> None:
    body = {"model": "m", "prompt": TOKENS, "custom_params": ids_form(), "max_tokens": 1}
    if "chat" in route:
        body = chat(fresh_paths())
    response = post(served, route, {**body, name: value})
    if value == [] and response.status_code == 200:
        return  # none at all, for SGLang
    assert_refused(served, response)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "", "custom_params": ids_form()},
        {"prompt": [], "custom_params": ids_form()},
        {"prompt": [[]], "custom_params": ids_form()},
        {"prompt": [TOKENS, TOKENS], "custom_params": ids_form()},
        {"prompt": TOKENS, "custom_params": [ids_form()]},
        {"prompt": TOKENS, "custom_params": ids_form(), "max_tokens": "many"},
        {"messages": [], "custom_params": text_form([["a", "b"]])},
        {"messages": [{}], "custom_params": text_form([["a", "b"]])},
        {"messages": "hello", "custom_params": text_form([["a", "b"]])},
        {"messages": [{"role": "user", "content": None}], "custom_params": text_form([["a"]])},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        {"text": ["a", "b"], "sampling_params": {"custom_params": text_form([["a", "b"]])}},
        {"text": 5, "sampling_params": {"custom_params": text_form([["a", "b"]])}},
        {"input_ids": "abc", "sampling_params": {"custom_params": ids_form()}},
        {"input_ids": [TOKENS], "sampling_params": {"custom_params": ids_form()}},
        {"input_ids": TOKENS, "sampling_params": [{"custom_params": ids_form()}]},
        {"input_ids": TOKENS, "sampling_params": "custom_params"},
        {"input_ids": TOKENS, "sampling_params": {"custom_params": ids_form()}, "colour": 1},
    ],
    ids=lambda body: json.dumps(body)[:60],
)
@pytest.mark.parametrize("route", QUESTIONS)
def test_a_question_is_typed_like_the_request_it_stands_for(
    served, route: str, body: dict[str, Any]
) -> None:
    assert_refused(served, post(served, route, body))


@pytest.mark.parametrize("value", [[-1], [2], [], "2", 1.5, {"a": 1}], ids=repr)
def test_a_list_for_logprob_start_len_is_refused(served, value: Any) -> None:
    body = with_ids(ids_form(), return_logprob=True, logprob_start_len=value)
    assert_refused(served, post(served, "/generate", body))


LISTS = {
    "logprob_start_len": [-1],
    "top_logprobs_num": [1],
    "return_logprob": [True],
    "return_hidden_states": [],
}


@pytest.mark.parametrize("custom_params", [None, ids_form()], ids=["plain", "dependency"])
@pytest.mark.parametrize("name", LISTS)
def test_a_list_for_one_prompt_does_not_end_the_server(
    served, name: str, custom_params: Any
) -> None:
    """It does where SGLang runs without DepCache: `logprob_start_len: [-1]` is enough."""
    body = with_ids(custom_params, **{"return_logprob": True, name: LISTS[name]})
    assert_refused(served, post(served, "/generate", body), name)


def test_lists_are_refused_wherever_sglang_has_them_for_batches_alone() -> None:
    from sglang_patches.requests.inbound import fields_of_one_value

    assert set(LISTS) <= set(fields_of_one_value())
    assert "token_ids_logprob" not in fields_of_one_value()


@pytest.mark.parametrize("name", ["top_logprobs_num", "return_logprob", "token_ids_logprob"])
@pytest.mark.parametrize("value", [[[1]], {"a": [1]}, "x"], ids=repr)
def test_lists_that_are_for_batches_are_refused_for_one_prompt(
    served, name: str, value: Any
) -> None:
    body = with_ids(ids_form(), **{"return_logprob": True, name: value})
    assert_refused(served, post(served, "/generate", body))


MANY = [[f"a{i}", "to", f"b{i}"] for i in range(100_000)]


def many(route: str) -> dict[str, Any]:
    prompt, custom_params = text(MANY)
    if "chat" in route:
        return chat(MANY)
    if "completions" in route:
        return {"model": "m", "prompt": prompt, "custom_params": custom_params}
    return {"text": prompt, "sampling_params": {"custom_params": custom_params}}


@pytest.mark.parametrize(
    "route", [*QUESTIONS, "/generate", "/v1/completions", "/v1/chat/completions"]
)
def test_more_than_the_context_takes_is_refused_before_it_is_read(served, route: str) -> None:
    assert_refused(served, post(served, route, many(route)), "at most")


@pytest.mark.parametrize("route", QUESTIONS)
def test_a_question_has_the_context_limit_of_the_request(served, route: str) -> None:
    lens = [1] * 9000
    form = ids_form(depcache_segment_lens=lens, depcache_segment_parents=[-1] * 9000)
    body = with_ids(form, list(range(4)) + [10] * 9001)
    assert_refused(served, post(served, route, body), "context")
    paths = [[string.ascii_letters[i % 52] * 40, "to", f"b{i}"] for i in range(3000)]
    assert_refused(served, post(served, route, chat(paths)), "context")


@pytest.mark.parametrize("route", QUESTIONS)
def test_a_body_without_end_is_cut_off(served, route: str) -> None:
    def endless() -> Iterator[bytes]:
        yield b'{"text": "'
        for _ in range(64):
            yield b"x" * 2**20

    headers = {"Content-Type": "application/json", **ADMIN}
    response = served.client.post(route, content=endless(), headers=headers)
    assert_refused(served, response, "longer than")


def test_looking_leaves_nothing_behind(served) -> None:
    paths = fresh_paths()
    prompt, custom_params = text(paths)
    body = {"text": prompt, "sampling_params": {"max_new_tokens": 1}}
    body["sampling_params"]["custom_params"] = custom_params
    served.post("/generate", body).raise_for_status()
    shorter, params = text([[name[:4] for name in path] for path in paths])
    before = served.client.get("/depcache/status").json()["cache"]
    for number in range(20):
        for route in ("/depcache/explain", "/depcache/prefetch"):
            for asked, asked_params in ((prompt, custom_params), (shorter, params)):
                question = {"text": asked, "sampling_params": {"custom_params": asked_params}}
                key = {"extra_key": f"nobody {number}"} if number else {}
                assert served.post(route, {**question, **key}).status_code == 200
    after = served.client.get("/depcache/status").json()["cache"]
    assert after["nodes"] == before["nodes"]
    assert after["namespaces"] == before["namespaces"] > 0


def test_tenants_whose_names_run_together_are_apart(served) -> None:
    prompt, custom_params = text(fresh_paths())
    body = {"model": "m", "prompt": prompt, "max_tokens": 1, "custom_params": custom_params}
    tenants = [
        {"cache_salt": "alice"},
        {"cache_salt": "al", "extra_key": "ice"},
        {"extra_key": "alice"},
        {"cache_salt": "alic", "extra_key": "e"},
        {"extra_key": "\x1f5:alice"},
    ]

    def shared(tenant: dict[str, str]) -> int:
        reply = served.post("/v1/completions", {**body, **tenant}).json()
        return reply["metadata"]["depcache"]["shared"]

    assert [shared(tenant) for tenant in tenants] == [0] * len(tenants)
    assert all(map(shared, tenants))
    plain = {"model": "m", "prompt": f"{prompt} and more", "max_tokens": 1}

    def cached(tenant: dict[str, str]) -> int:
        usage = served.post("/v1/completions", {**plain, **tenant}).json()["usage"]
        return (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0

    assert not any(cached({"cache_salt": salt}) for salt in ("bob", "ali"))


@pytest.fixture(scope="module")
def engine(model_path: Callable[[str], Path]) -> Iterator[Any]:
    from tests.helpers.engine import start_engine

    with start_engine(model_path("llama_gqa")) as engine:
        yield engine


def test_what_reaches_the_scheduler_all_the_same_costs_one_request(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the checks in front had a hole: the scheduler ends this request and goes on."""
    from sglang_patches.hooks import tokenizer_manager

    params = {"max_new_tokens": 2, "custom_params": ids_form()}
    good = engine.ask_raw(TOKENS, params)
    with monkeypatch.context() as hole:
        hole.setattr(tokenizer_manager, "sealed", lambda obj: ["no", "text"])
        for asked in (params, {"max_new_tokens": 2}):
            with pytest.raises(HTTPException, match="unhashable") as refused:
                engine.ask_raw(TOKENS, asked)
            assert refused.value.status_code == 500
    assert engine.ask_raw(TOKENS, params)["output_ids"] == good["output_ids"]
    assert engine.check_conservation()["tokens"]["rejected_requests"] == 2


def test_a_long_prompt_is_read_beside_the_event_loop(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    from sglang_patches.requests import inbound

    loops: list[Any] = []
    read = inbound.read_text

    def watched(*args: Any, **keywords: Any) -> Any:
        try:
            loops.append(asyncio.get_running_loop())
        except RuntimeError:
            loops.append(None)
        return read(*args, **keywords)

    monkeypatch.setattr(inbound, "read_text", watched)
    monkeypatch.setattr("sglang_patches.requests.size.MAX_SHORT", 0)  # else it is read at once
    prompt, custom_params = text(fresh_paths())
    engine.engine.generate(prompt, {"max_new_tokens": 1, "custom_params": custom_params})
    assert loops == [None]
