# SPDX-License-Identifier: Apache-2.0
"""The picker's routes, and the clients that ask it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn

import depcache
from depcache.client.routing import HEADER, PICK_AGAIN_S, TARGET_HEADER, Routing
from depcache.errors import ConfigError
from depcache.picker.choice import Picker
from depcache.picker.service import make_app
from depcache.prompt.roots import root_keys


@dataclass
class Server:
    """As a listener is for the application."""

    url: str
    roots: dict[str, int] = field(default_factory=dict)
    is_alive: bool = True
    calls: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.calls.append("start")

    def close(self) -> None:
        self.calls.append("close")

    def describe(self) -> dict[str, Any]:
        return {"url": self.url, "alive": self.is_alive}


def chat(*names: str, **fields: Any) -> dict[str, Any]:
    prompt = depcache.render([(name, "knows", "Bob") for name in names], "Who?")
    return {"model": "default", "messages": prompt.messages, **prompt.extra_body, **fields}


@pytest.fixture
def servers() -> list[Server]:
    [ada] = root_keys(chat("Ada"))
    return [Server("http://one"), Server("http://two", {ada: 7})]


@contextmanager
def serving(servers: list[Server]) -> Iterator[httpx.Client]:
    """The application on a port of its own."""
    listeners: Any = servers
    app = make_app(listeners, Picker(listeners))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        yield client
    server.should_exit = True
    thread.join()


def test_a_request_or_its_roots_are_asked_about(servers: list[Server]) -> None:
    with serving(servers) as client:
        assert [each.calls for each in servers] == [["start"], ["start"]]
        for body in (chat("Ada"), {"roots": list(root_keys(chat("Ada")))}):
            assert client.post("/pick", json=body).json() == {
                "server": "http://two",
                "held": 7,
                "headers": {"X-SMG-Target-Worker": "http://two"},
            }
        assert client.post("/pick", json={"messages": []}).json()["held"] == 0
        assert client.get("/servers").json()[1] == {"url": "http://two", "alive": True}
        assert client.get("/health").status_code == 200
    assert servers[0].calls == ["start", "close"]


def test_without_a_server_it_says_so(servers: list[Server]) -> None:
    for server in servers:
        server.is_alive = False
    with serving(servers) as client:
        reply = client.post("/pick", json=chat("Ada"))
        assert reply.status_code == 503 and "no server is alive" in reply.json()["error"]["message"]
        assert client.get("/health").status_code == 503


@pytest.mark.parametrize("content", [b"", b"{", b'{"roots": 5}', b'{"roots": [5]}', b"[" * 20_000])
def test_what_cannot_be_read_is_an_error_of_the_request(
    servers: list[Server], content: bytes
) -> None:
    with serving(servers) as client:
        assert client.post("/pick", content=content).status_code == 400
        assert client.post("/pick", json=chat("Ada")).status_code == 200


def test_a_long_body_is_read_and_one_without_end_is_not(servers: list[Server]) -> None:
    long = chat(*(f"Somebody {number}" for number in range(3000)))
    endless = (b"x" * 2**20 for _ in range(100))
    with serving(servers) as client:
        assert client.post("/pick", json=long).status_code == 200
        assert client.post("/pick", content=endless).status_code == 413
        assert client.post("/pick", json=chat("Ada")).status_code == 200


def test_a_client_sends_what_the_picker_says(servers: list[Server]) -> None:
    now = [0.0]
    with serving(servers) as client:
        routing = Routing(str(client.base_url), clock=lambda: now[0])
        assert routing.headers_of(chat("Ada")) == {TARGET_HEADER: "http://two"}
        assert routing.headers_of({"messages": []}) == {}
        for server in servers:
            server.is_alive = False
        assert set(routing.headers_of(chat("Ada"))) == {HEADER}
        for server in servers:
            server.is_alive = True
        assert set(routing.headers_of(chat("Ada"))) == {HEADER}  # it is left alone for a while
        now[0] = PICK_AGAIN_S
        assert set(routing.headers_of(chat("Ada"))) == {TARGET_HEADER}


def test_a_picker_that_is_gone_costs_no_request(caplog: pytest.LogCaptureFixture) -> None:
    routing = Routing("127.0.0.1:1")
    assert set(routing.headers_of(chat("Ada"))) == {HEADER}
    assert set(routing.headers_of(chat("Ada"))) == {HEADER}
    assert sum("names no server" in each.message for each in caplog.records) == 1
    routing.close()
    with pytest.raises(ConfigError, match="no address"):
        Routing("ftp://x")


@pytest.mark.parametrize("is_async", [False, True])
def test_transports_ask_it(servers: list[Server], is_async: bool) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={})

    mock = httpx.MockTransport(answer)
    kind = depcache.client.AsyncDepCacheTransport if is_async else depcache.client.DepCacheTransport
    with serving(servers) as picker:
        transport = kind(mock, picker=str(picker.base_url))
        request = httpx.Request("POST", "http://router/v1/chat/completions", json=chat("Ada"))
        if is_async:
            asyncio.run(transport.handle_async_request(request))
        else:
            transport.handle_request(request)
    assert seen[0].headers[TARGET_HEADER] == "http://two" and HEADER not in seen[0].headers
