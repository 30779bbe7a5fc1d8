# SPDX-License-Identifier: Apache-2.0
"""Every route that takes a prompt reads dependency data or refuses it: none ignores it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sglang_patches.http.test_routes import assert_cold_then_warm, chat, fresh_paths, text

pytestmark = pytest.mark.sglang

DATA = {"depcache_version": 1, "depcache_paths": '[["a", "b", "c"]]'}
HELLO = [{"role": "user", "content": "Facts:\na -> b -> c\nwho?"}]

# Routes that nothing is done for; bodies that they answer, or refuse for a reason of their own.
REFUSING: dict[str, dict[str, Any]] = {
    "/v1/responses": {"model": "m", "input": "hello", "max_output_tokens": 4},
    "/v1/messages": {"model": "m", "messages": HELLO, "max_tokens": 2},
    "/v1/messages/count_tokens": {"model": "m", "messages": HELLO},
    "/api/chat": {"model": "m", "messages": HELLO, "stream": False, "options": {"num_predict": 2}},
    "/api/generate": {"model": "m", "prompt": "hi", "stream": False, "options": {"num_predict": 2}},
    "/v1/tokenize": {"prompt": "hello"},
    "/tokenize": {"messages": HELLO},
    "/v1/embeddings": {"input": "hello"},
    "/v1/classify": {"input": "hello"},
    "/v1/score": {"query": "a", "items": ["b"], "label_token_ids": [5]},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/encode": {"text": "hello"},
    "/classify": {"text": "hello"},
}
# Routes that read it, with where.
READING: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": ({"messages": HELLO, "max_tokens": 2}, "custom_params"),
    "/invocations": ({"messages": HELLO, "max_tokens": 2}, "custom_params"),
    "/v1/completions": ({"prompt": "hello", "max_tokens": 2}, "custom_params"),
    "/generate": ({"text": "hello"}, "sampling_params.custom_params"),
    "/vertex_generate": (
        {"instances": [{"text": "hello"}]},
        "parameters.sampling_params.custom_params",
    ),
}
# Where a client may have put it.
PLACES: dict[str, dict[str, Any]] = {
    "custom_params": {"custom_params": DATA},
    "sampling_params.custom_params": {"sampling_params": {"custom_params": DATA}},
    "sampling_params": {"sampling_params": DATA},
    "parameters.sampling_params.custom_params": {
        "parameters": {"sampling_params": {"custom_params": DATA}}
    },
    "extra_body.custom_params": {"extra_body": {"custom_params": DATA}},
    "metadata": {"metadata": DATA},
    "options": {"options": DATA},
    "the body itself": DATA,
}


def reason(response: Any) -> str:
    """The sentence of an error, in each family's envelope."""
    body = response.json()
    return body["message"] if "message" in body else body["error"]["message"]


@pytest.mark.parametrize("route", REFUSING)
def test_a_route_that_cannot_use_dependency_data_refuses_it(served, route: str) -> None:
    for place, data in PLACES.items():
        response = served.post(route, {**REFUSING[route], **data})
        assert response.status_code == 400
        assert reason(response).startswith(f"{route} takes no dependency data")
        assert f"in {place}: send" in reason(response)


@pytest.mark.parametrize("route", READING)
def test_a_route_refuses_dependency_data_where_it_does_not_look(served, route: str) -> None:
    body, right_place = READING[route]
    for place, data in PLACES.items():
        if place != right_place:
            response = served.post(route, {**body, **data})
            assert response.status_code == 400
            assert f"in {place}: send them in {right_place}" in reason(response)


def test_a_list_of_sampling_params_is_looked_through(served) -> None:
    body = {"text": ["a", "b"], "sampling_params": [{"max_new_tokens": 1}, DATA]}
    response = served.post("/generate", body)
    assert response.status_code == 400
    assert "sampling_params" in reason(response)


# The others want another model; /api/chat fails in stock SGLang 0.5.17 with transformers 5.
@pytest.mark.parametrize(
    "route",
    [
        *("/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/api/generate"),
        *("/v1/tokenize", "/tokenize", "/v1/score"),
    ],
)
def test_a_plain_request_is_answered(served, route: str) -> None:
    model = served.client.get("/v1/models").json()["data"][0]["id"]
    body = {**REFUSING[route], "metadata": {"user_id": "u"}, "custom_params": {"mine": 1}}
    body["model"] = model  # some routes of 0.5.23 know no other
    response = served.post(route, body)
    assert response.status_code == 200, response.text


def test_a_refusal_is_counted(served) -> None:
    def rejected() -> int:
        return served.client.get("/depcache/stats").json()["requests"]["rejected_requests"]

    before = rejected()
    served.post("/v1/responses", {"input": "hello", "custom_params": DATA})
    assert rejected() == before + 1


def test_the_body_of_a_plain_request_is_passed_on_untouched() -> None:
    from sglang_patches.hooks.http_server import refuse_unread

    body = {"input": "hello", "metadata": {"user": "u"}, "custom_params": {"mine": 1}}

    async def read(request: Any) -> Any:
        return body

    async def v1_responses_request() -> None: ...

    request: Any = SimpleNamespace(scope={"endpoint": v1_responses_request})
    assert asyncio.run(refuse_unread(read, request)) is body


def test_every_endpoint_that_reads_is_one_of_sglang() -> None:
    from sglang.srt.entrypoints import http_server

    from sglang_patches.hooks.http_server import READ_AT

    endpoints = {getattr(route, "name", "") for route in http_server.app.routes}
    assert set(READ_AT) <= endpoints


# Routes beside the known ones that go the same way inside SGLang.


def test_invocations_answer_as_the_chat_route(served) -> None:
    body = chat(fresh_paths())
    first, second = (served.post("/invocations", body).json() for _ in range(2))
    assert_cold_then_warm(first["metadata"]["depcache"], second["metadata"]["depcache"])


def test_vertex_answers_each_instance_with_its_report(served) -> None:
    prompt, custom_params = text(fresh_paths())
    params = {"max_new_tokens": 2, "temperature": 0, "custom_params": custom_params}
    body = {
        "instances": [{"text": prompt}, {"text": prompt + " And why?"}],
        "parameters": {"sampling_params": params},
    }
    replies = [served.post("/vertex_generate", body).json() for _ in range(2)]
    # 0.5.23 answers as Vertex wants it.
    first, second = (each["predictions"] if isinstance(each, dict) else each for each in replies)
    for cold, warm in zip(first, second, strict=True):
        assert warm["meta_info"]["depcache"]["missed"] == 0
        assert warm["text"] == cold["text"]
    assert first[0]["meta_info"]["depcache"]["context_tokens"] > 0
