# SPDX-License-Identifier: Apache-2.0
"""The clients of each framework, and the report in whatever it makes of a reply."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion

import depcache
from depcache.client.frameworks import FRAMEWORKS
from depcache.client.reply import Reply, ReuseReport
from depcache.client.transport import AsyncDepCacheTransport, DepCacheTransport
from tests.depcache.client.fake_server import REPORT

EXPECTED = ReuseReport.from_dict(REPORT)
BODY: dict[str, Any] = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    ],
    "metadata": {"depcache": REPORT},
}


@pytest.mark.parametrize("name", list(FRAMEWORKS))
def test_a_framework_gets_clients_that_rewrite(name: str) -> None:
    made = depcache.clients(name, merge=True)
    flat = {key: value for key, value in made.items() if not isinstance(value, dict)}
    for value in made.values():
        flat |= value if isinstance(value, dict) else {}
    assert len(flat) == len(FRAMEWORKS[name])
    for client in flat.values():
        is_async = isinstance(client, httpx.AsyncClient)
        kind = AsyncDepCacheTransport if is_async else DepCacheTransport
        assert isinstance(client._transport, kind)


def test_the_openai_sdk_takes_them() -> None:
    OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", **depcache.clients("openai"))
    AsyncOpenAI(
        base_url="http://127.0.0.1:9/v1", api_key="none", **depcache.clients("openai-async")
    )


def test_the_client_of_lightrag_survives_that_it_closes_it_after_each_call() -> None:
    client = depcache.clients("lightrag")["openai_client_configs"]["http_client"]
    sdk = AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", http_client=client)
    asyncio.run(sdk.close())
    assert not client.is_closed


def test_calls_that_a_framework_sends_without_us_are_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("depcache.client.frameworks._warned", set[str]())
    for name in ("neo4j-graphrag", "neo4j-graphrag", "langchain", "openai"):
        depcache.clients(name)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "asynchronous calls (`ainvoke`) go out as plain prompts" in record.getMessage()


def test_an_unknown_framework_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(depcache.ConfigError, match="langchain"):
        depcache.clients("prolog")
    with pytest.raises(depcache.ConfigError, match="litellm"):
        depcache.install("prolog")


def test_a_library_that_is_not_there_is_said_in_one_sentence(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "litellm", None)
    with pytest.raises(depcache.ConfigError, match="litellm is not installed here"):
        depcache.install("litellm")


def test_litellm_gets_both_clients() -> None:
    litellm = pytest.importorskip("litellm")
    depcache.install("litellm")
    assert isinstance(litellm.client_session._transport, DepCacheTransport)
    assert isinstance(litellm.aclient_session._transport, AsyncDepCacheTransport)


class _Wrapped:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def test_the_report_is_found_in_what_clients_make_of_a_reply() -> None:
    parsed = ChatCompletion.model_validate(BODY)
    own = Reply("x", None, EXPECTED, "stop", None, None, 0.1)
    for reply in (
        BODY,
        parsed,
        {"text": "x", "meta_info": {"depcache": REPORT}},
        _Wrapped(raw=parsed),
        _Wrapped(raw=BODY),
        _Wrapped(response_metadata={"metadata": {"depcache": REPORT}}),
        own,
    ):
        assert depcache.report(reply) == EXPECTED


@pytest.mark.parametrize("reply", [None, {}, {"metadata": None}, "text", {"metadata": {"a": 1}}])
def test_a_reply_of_a_server_without_depcache_has_none(reply: Any) -> None:
    assert depcache.report(reply) is None
