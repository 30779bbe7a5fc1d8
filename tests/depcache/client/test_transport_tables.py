# SPDX-License-Identifier: Apache-2.0
"""The transport of a client that looks for tables as well."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

import depcache
from depcache.client import AsyncDepCacheTransport, DepCacheTransport, graph_context
from depcache.errors import ConfigError, PromptError
from depcache.prompt.outline import Outline
from tests.depcache.client.fake_server import FakeServer, named_paths
from tests.depcache.tables.test_prompt_tables import CATALOG, langchain, rows_of

URL = "http://test/v1/chat/completions"
JSON = {"content-type": "application/json"}
FACTS = "Marie Curie -> born in -> Warsaw\nWarsaw -> located in -> Poland"
PATHS = [("Marie Curie", "born in", "Warsaw"), ("Warsaw", "located in", "Poland")]
PROMPT = langchain(["album", "artist", "track"], "How many tracks?")
MESSAGES = [{"role": "system", "content": "Write SQL."}, {"role": "user", "content": PROMPT}]


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


def send(server: FakeServer, body: Any, **options: Any) -> Any:
    """The body as the server gets it."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with httpx.Client(transport=DepCacheTransport(server.transport, **options)) as client:
        client.post(URL, content=content, headers=JSON)
    return server.body


def outline_in(body: dict[str, Any]) -> Outline:
    params = body["custom_params"]
    assert params["depcache_version"] == 2 and params["depcache_layout"] == "tree"
    return Outline.from_json(params["depcache_outline"])


@pytest.mark.parametrize("tables", ["ddl", CATALOG])
def test_tables_go_out_as_rows_that_see_what_they_refer_to(server, tables: Any) -> None:
    body = send(server, {"messages": MESSAGES}, tables=tables)
    outline = outline_in(body)
    assert body["messages"] == MESSAGES and outline.message == 1
    assert outline.sees == ((1,), (), (0,)) and outline.absent == 1  # of genre
    rows = rows_of(outline, PROMPT)
    assert [row.split()[2] for row in rows] == ["album", "artist", "track"]
    assert all(row.startswith("\n\nCREATE TABLE") and row.endswith("*/\n") for row in rows)
    nothing = outline_in(send(server, {"messages": MESSAGES}, tables=tables, sees="nothing"))
    assert nothing.sees == () and nothing.lens == outline.lens


def test_tables_are_not_looked_for_unless_asked_for(server) -> None:
    assert send(server, {"messages": MESSAGES}) == {"messages": MESSAGES}


PLAIN = [
    b'{"messages" :  [{"role":"user","content":"caf\xc3\xa9"}]}',
    b'{"messages": [{"role": "user", "content": "How do I CREATE TABLE users?"}]}',
    b'{"messages": [{"role": "user", "content": "CREATE TABLE a (b INT)"}], "n":1 }',
    b'{"messages": [{"role": "user", "content": "CREATE TABLE a (,) CREATE TABLE b (c INT)"}]}',
    json.dumps({"messages": [{"role": "assistant", "content": PROMPT}]}, indent=1).encode(),
    b"",
    b"no json",
    b"[" * 100_000,
]


@pytest.mark.parametrize("content", PLAIN)
@pytest.mark.parametrize("tables", ["ddl", CATALOG])
def test_a_prompt_without_tables_is_sent_byte_for_byte(content: bytes, tables: Any) -> None:
    sent: list[bytes] = []
    transport = DepCacheTransport(
        httpx.MockTransport(lambda request: sent.append(request.content) or httpx.Response(200)),
        tables=tables,
    )
    with httpx.Client(transport=transport) as client:
        client.post(URL, content=content, headers=JSON)
    assert sent == [content]


MANY = "".join(f"CREATE TABLE t{i} (a INT);\n" for i in range(10_000))
UNREADABLE = "".join(f"CREATE TABLE t{i} (,,);\n" for i in range(500))


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        (PROMPT + "x" * 5_000_000, "ddl"),
        (PROMPT + "x" * 5_000_000, CATALOG),
        (MANY, "ddl"),
        (UNREADABLE, "ddl"),
        ("CREATE TABLE a (" * 9_999, "ddl"),
    ],
    ids=["long", "long for a catalog", "many", "unreadable", "never closed"],
)
def test_what_is_too_much_passes_with_one_line_in_the_log(
    server, text: str, tables: Any, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"messages": [{"role": "user", "content": text}]}
    with caplog.at_level(logging.INFO, "depcache"):
        assert send(server, body, tables=tables) == body
    assert len(caplog.records) == 1, caplog.messages


def test_comments_that_never_close_leave_the_prompt_as_it_is(
    server, caplog: pytest.LogCaptureFixture
) -> None:
    """A slow machine gives such a text up and says so; a fast one finds no run of tables."""
    body = {"messages": [{"role": "user", "content": "CREATE TABLE a (b INT) /* " * 9_999}]}
    with caplog.at_level(logging.INFO, "depcache"):
        assert send(server, body, tables="ddl") == body
    assert len(caplog.records) <= 1, caplog.messages


def test_a_prompt_with_tables_is_not_searched_for_facts(server) -> None:
    both = {"role": "user", "content": f"{FACTS}\n\n{PROMPT}"}
    for options in ({}, {"merge": True}, {"auto": False}):
        outline = outline_in(send(server, {"messages": [both]}, tables="ddl", **options))
        assert outline.num_rows == 3 and outline.absent == 1
    facts = [{"role": "user", "content": f"Facts:\n{FACTS}\n\nWhere?"}]
    assert outline_in(send(server, {"messages": facts}, tables="ddl")).absent is None
    merged = send(server, {"messages": facts}, tables="ddl", merge=True)
    assert named_paths(merged) == PATHS
    body = {"messages": facts}
    assert send(server, body, tables="ddl", auto=False) == body


def test_named_paths_go_before_tables(server) -> None:
    with graph_context(PATHS) as facts:
        content = f"Facts:{facts}\n\n{PROMPT}"
        body = send(server, {"messages": [{"role": "user", "content": content}]}, tables="ddl")
    assert named_paths(body) == PATHS


def test_a_request_that_says_how_it_is_to_be_read_is_left_alone(server) -> None:
    for said in ({"depcache_match": False}, {"depcache_match": True}, {"depcache_version": 2}):
        body = {"messages": MESSAGES, "custom_params": said}
        assert send(server, body, tables="ddl") == body
    body = {"messages": MESSAGES, "custom_params": {"mine": 1}}
    assert send(server, body, tables="ddl")["custom_params"]["mine"] == 1


def test_completions_and_asynchronous_clients_are_read_too(server) -> None:
    async def ask() -> None:
        transport = AsyncDepCacheTransport(httpx.MockTransport(server.answer), tables="ddl")
        async with httpx.AsyncClient(transport=transport) as client:
            await client.post("http://test/v1/completions", json={"prompt": PROMPT})

    asyncio.run(ask())
    outline = outline_in(server.body)
    assert outline.message is None and outline.sees == ((1,), (), (0,))


@pytest.mark.parametrize("text", [CATALOG["album"].text + "\n" + CATALOG["artist"].text, FACTS])
def test_a_text_that_ends_with_what_was_found_goes_out_as_it_is(server, text: str) -> None:
    url = "http://test/v1/completions"
    with httpx.Client(transport=DepCacheTransport(server.transport, tables="ddl")) as client:
        client.post(url, json={"prompt": text})
        assert server.body == {"prompt": text}
        client.post(url, json={"prompt": f"{text}\nWho?"})
    assert outline_in(server.body).message is None


def test_the_ready_made_clients_take_tables() -> None:
    with (
        depcache.httpx_client(tables=CATALOG, sees="nothing"),
        depcache.httpx2_client(tables="ddl"),
    ):
        pass
    for make in (depcache.httpx_client, depcache.async_httpx_client, depcache.httpx2_client):
        with pytest.raises(ConfigError, match="tables is 'sql'"):
            make(tables="sql")  # pyright: ignore[reportArgumentType]
    for framework in ("langchain", "llamaindex"):
        made = depcache.clients(framework, tables="ddl")
        assert len(made) == 2
        with pytest.raises(PromptError, match="sees is 'all'"):
            depcache.clients(framework, tables="ddl", sees="all")


openai = pytest.importorskip("openai", reason="needs the openai package (extra `server`)")


def test_the_openai_sdk_sends_tables_and_gets_the_report(server) -> None:
    http = httpx.Client(transport=DepCacheTransport(server.transport, tables="ddl"))
    with openai.OpenAI(base_url="http://test/v1", api_key="-", http_client=http) as sdk:
        reply = sdk.chat.completions.create(model="m", messages=MESSAGES)
    assert outline_in(server.body).num_rows == 3
    assert depcache.report(reply) is not None
