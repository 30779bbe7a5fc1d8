# SPDX-License-Identifier: Apache-2.0
"""The transport under httpx and under the real OpenAI SDK."""

import asyncio
import json
import sys
from typing import Any

import httpx
import pytest

from depcache.client import (
    AsyncDepCacheTransport,
    DepCacheTransport,
    async_httpx2_client,
    async_httpx_client,
    graph_context,
    httpx2_client,
    httpx_client,
)
from depcache.errors import ConfigError, PromptError
from depcache.prompt.recompute import Recompute
from tests.depcache.client.fake_server import REPORT, FakeServer, named_paths
from tests.helpers.fake_http import start_fake_http

URL = "http://test/v1/chat/completions"
LINES = "Marie Curie -> born in -> Warsaw\nWarsaw -> located in -> Poland"
PATHS = [("Marie Curie", "born in", "Warsaw"), ("Warsaw", "located in", "Poland")]
MESSAGES = [{"role": "user", "content": f"Facts:\n{LINES}\n\nWhere?"}]
JSON = {"content-type": "application/json"}


@pytest.fixture
def server():
    return FakeServer()


@pytest.fixture
def http(server):
    with httpx.Client(transport=DepCacheTransport(server.transport, merge=True)) as client:
        yield client


def test_a_chat_with_facts_is_sent_as_a_dependency_prompt_with_the_right_length(http, server):
    http.post(URL, json={"messages": MESSAGES})
    assert named_paths(server.body) == PATHS
    assert server.headers[-1]["content-length"] == str(len(server.raw[-1]))


@pytest.mark.parametrize(
    "content",
    [
        b'{"messages" :  [{"role":"user","content":"caf\xc3\xa9"}]}',
        b"",
        b"no json",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"messages": 1e400}',
    ],
)
def test_a_body_without_facts_is_sent_byte_for_byte(content, server):
    sent = []
    transport = DepCacheTransport(
        httpx.MockTransport(lambda request: sent.append(request.content) or httpx.Response(200)),
        merge=True,
    )
    with httpx.Client(transport=transport) as client:
        client.post(URL, content=content, headers=JSON)
    assert sent == [content]


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/v1/embeddings", JSON),
        ("PUT", "/v1/chat/completions", JSON),
        ("POST", "/v1/chat/completions", {"content-type": "text/plain"}),
        ("POST", "/v1/chat/completions", {**JSON, "content-encoding": "gzip"}),
    ],
)
def test_other_requests_pass_untouched(method, path, headers):
    content = json.dumps({"messages": MESSAGES}).encode()
    sent = []
    transport = DepCacheTransport(
        httpx.MockTransport(lambda request: sent.append(request.read()) or httpx.Response(200)),
        merge=True,
    )
    with httpx.Client(transport=transport) as client:
        client.request(method, f"http://test{path}", content=content, headers=headers)
    assert sent == [content]


def test_a_body_that_comes_in_pieces_is_read_and_rewritten(http, server):
    pieces = iter([b'{"messages": ', json.dumps(MESSAGES).encode(), b"}"])
    http.post(URL, content=pieces, headers=JSON)
    assert named_paths(server.body) == PATHS
    assert "transfer-encoding" not in server.headers[-1]


def test_half_a_surrogate_pair_beside_facts_survives(http, server):
    content = json.dumps({"messages": MESSAGES, "user": "\ud800"}).encode()
    http.post(URL, content=content, headers=JSON)
    assert server.body["user"] == "\ud800"
    assert "custom_params" in server.body


def test_the_asynchronous_transport_does_the_same(server):
    async def ask():
        transport = AsyncDepCacheTransport(httpx.MockTransport(server.answer), merge=True)
        async with httpx.AsyncClient(transport=transport) as client:
            await client.post(URL, json={"messages": MESSAGES})
            with graph_context([("x", "r", "y")]) as facts:
                content = f"Know:{facts}\nQ?"
                await client.post(URL, json={"messages": [{"role": "user", "content": content}]})

    asyncio.run(ask())
    first, second = (named_paths(body) for _, body in server.requests)
    assert first == PATHS
    assert second == [("x", "r", "y")]


def test_closing_the_client_closes_the_wrapped_transport():
    class Wrapped(httpx.BaseTransport):
        closed = False

        def close(self):
            self.closed = True

    wrapped = Wrapped()
    httpx.Client(transport=DepCacheTransport(wrapped)).close()
    assert wrapped.closed


def test_the_ready_made_clients_take_options_of_httpx():
    with httpx_client(timeout=5, headers={"x": "y"}, verify=False) as client:
        assert client.timeout.read == 5
        assert client.headers["x"] == "y"
        assert client.follow_redirects
    asyncio.run(async_httpx_client(limits=httpx.Limits(max_connections=3)).aclose())


def test_clients_of_httpx2_send_the_same_over_a_real_connection():
    bodies = []

    def answer(exchange):
        bodies.append((exchange.body, exchange.headers.get("x")))
        exchange.send_json(200, {})

    with start_fake_http(answer) as (address, _):
        url = f"{address}/v1/chat/completions"
        with httpx_client() as client:
            client.post(url, json={"messages": MESSAGES})
        with httpx2_client(headers={"x": "y"}) as client:
            client.post(url, json={"messages": MESSAGES})

        async def ask():
            async with async_httpx2_client() as client:
                await client.post(url, json={"messages": MESSAGES})

        asyncio.run(ask())
    (usual, _), (sync, header), (asynchronous, _) = bodies
    assert "depcache_outline" in usual["custom_params"]
    assert usual == sync == asynchronous
    assert header == "y"


def test_without_httpx2_its_client_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(ConfigError, match=r"httpx2 is not installed here .* use depcache\.httpx_c"):
        httpx2_client()


def test_an_unknown_layout_is_refused_at_once():
    unknown: Any = "spiral"
    with pytest.raises(PromptError, match="layout"):
        httpx_client(layout=unknown)


@pytest.mark.parametrize("recompute", [0.05, Recompute(0.05, "mixed")])
def test_for_a_model_as_it_comes_a_share_of_whole_rows_is_computed_again(server, recompute):
    wanted = Recompute.read(recompute).to_params()
    transport = DepCacheTransport(server.transport, recompute=recompute)
    with httpx.Client(transport=transport) as client:
        client.post(URL, json={"messages": MESSAGES})
        found = server.body["custom_params"]
        with graph_context(PATHS) as facts:
            client.post(URL, json={"messages": [{"role": "user", "content": f"{facts}\n\nWho?"}]})
        named = server.body["custom_params"]
    for params in (found, named):
        assert params.items() >= wanted.items()
        assert params["depcache_layout"] == "sequential"
        assert not params["depcache_outline"].get("merge", False)
    assert named["depcache_outline"]["rows"] == [3, 3]  # pieces of each path


def test_what_contradicts_a_share_is_refused_at_once():
    with pytest.raises(ConfigError, match="leave out one"):
        httpx_client(merge=True, recompute=0.05)
    with pytest.raises(PromptError, match="staggered"):
        httpx_client(layout="staggered", recompute=0.05)
    with pytest.raises(PromptError, match="from 0 to 1"):
        asyncio.run(async_httpx_client(recompute=1.5).aclose())


# the real SDK

openai = pytest.importorskip("openai", reason="needs the openai package (extra `server`)")


@pytest.fixture
def sdk(http):
    return openai.OpenAI(base_url="http://test/v1", api_key="-", http_client=http, max_retries=0)


def test_the_openai_sdk_sends_facts_and_gets_the_report(sdk, server):
    reply = sdk.chat.completions.create(model="m", messages=MESSAGES)
    assert named_paths(server.body) == PATHS
    assert reply.choices[0].message.content == "Warsaw"
    assert reply.model_extra["metadata"]["depcache"] == REPORT


def test_the_openai_sdk_streams_and_the_last_chunk_has_the_report(sdk, server):
    stream = sdk.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Warsaw"
    assert chunks[-1].model_extra["metadata"]["depcache"] == REPORT
    assert "custom_params" in server.body


def test_the_openai_sdk_takes_a_graph_context(sdk, server):
    with graph_context(PATHS, layout="staggered") as facts:
        messages = [{"role": "user", "content": f"Facts:{facts}\n\nWhere?"}]
        sdk.chat.completions.create(model="m", messages=messages)
    assert server.body["custom_params"]["depcache_layout"] == "staggered"


def test_the_asynchronous_openai_sdk_works_too(server):
    async def ask():
        transport = AsyncDepCacheTransport(httpx.MockTransport(server.answer), merge=True)
        client = openai.AsyncOpenAI(
            base_url="http://test/v1",
            api_key="-",
            http_client=httpx.AsyncClient(transport=transport),
        )
        async with client:
            return await client.chat.completions.create(model="m", messages=MESSAGES)

    assert asyncio.run(ask()).model_extra["metadata"]["depcache"] == REPORT
    assert "custom_params" in server.body


SENTENCES = "Use these triplets.\n\nAda born in Mire\nAda won Cup\n\nWhere was Ada born?"


def test_facts_that_are_not_read_are_said_once_for_each_client(server, caplog):
    for _ in range(2):
        with httpx.Client(transport=DepCacheTransport(server.transport, merge=True)) as client:
            for content in ("Hello", SENTENCES, SENTENCES):
                client.post(URL, json={"messages": [{"role": "system", "content": content}]})
    assert len(caplog.messages) == 2
    assert "2 lines of a prompt look like facts" in caplog.messages[0]
    assert "'Ada born in Mire'" in caplog.messages[0]
    assert "depcache.graph_context" in caplog.messages[0]


def test_facts_beside_those_that_were_read_are_said(http, server, caplog):
    http.post(URL, json={"messages": MESSAGES})
    assert named_paths(server.body) == PATHS and caplog.messages == []
    words = f"Facts:\n{LINES}\n\nAnswer in one word.\nSay nothing that is not there.\nWhere?"
    http.post(URL, json={"messages": [{"role": "user", "content": words}]})
    assert named_paths(server.body) == PATHS and caplog.messages == []
    other = [{"role": "system", "content": "A -> in -> B\nB -> in -> C"}, *MESSAGES]
    http.post(URL, json={"messages": [*other, {"role": "user", "content": "D -> in -> E"}]})
    assert named_paths(server.body) == [("A", "in", "B"), ("B", "in", "C")]
    assert "3 lines of a prompt" in caplog.messages[0]


def test_nothing_is_said_where_paths_are_named_or_recognition_is_off(server, caplog):
    body = {"messages": [{"role": "user", "content": SENTENCES}]}
    with httpx.Client(transport=DepCacheTransport(server.transport, auto=False)) as client:
        client.post(URL, json=body)
    with httpx.Client(transport=DepCacheTransport(server.transport, merge=True)) as client:
        with graph_context(PATHS) as facts:
            message = {"role": "user", "content": f"{SENTENCES}{facts}"}
            client.post(URL, json={"messages": [message]})
        assert named_paths(server.body) == PATHS
        client.post(URL, json={**body, "custom_params": {"depcache_version": 1}})
    assert caplog.messages == []
