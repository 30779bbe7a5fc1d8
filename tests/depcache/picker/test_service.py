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
from depcache.client.routing import (
    ANSWERED_HEADER,
    HEADER,
    MAX_TRIES,
    PICK_AGAIN_S,
    Routing,
    ServerKeys,
)
from depcache.errors import ConfigError
from depcache.picker.choice import Picker
from depcache.picker.service import make_app
from depcache.prompt.roots import root_keys, shared_keys


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
def serving(
    servers: list[Server], public_salt: str | None = None, key: str | None = None
) -> Iterator[httpx.Client]:
    """The application on a port of its own."""
    listeners: Any = servers
    app = make_app(listeners, Picker(listeners), public_salt, key=key)
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


@pytest.mark.parametrize("salt", ["", "graph"])
def test_a_tenant_goes_where_what_is_public_is(salt: str) -> None:
    fields = {"cache_salt": salt} if salt else {}
    [everyones] = root_keys(chat("Ada", **fields))
    body = chat("Ada", cache_salt="tenant")
    [own] = root_keys(body)
    assert own != everyones
    servers = [Server("http://one", {everyones: 7}), Server("http://two", {own: 5})]
    keys = {"roots": [own], "shared": list(shared_keys(body)[0])}
    with serving(servers, salt) as client:
        for asked in (body, keys):
            assert client.post("/pick", json=asked).json() == {"server": "http://one", "held": 7}
        assert client.post("/pick", json={"roots": [own]}).json()["server"] == "http://two"
        reply = client.post("/pick", json={"roots": [own], "shared": ["ab", "cd"]})
        assert reply.status_code == 400
        assert "2 keys for 1 roots" in reply.json()["error"]["message"]
        reply = client.post("/pick", json={"roots": [own], "shared": ["not hexadecimal"]})
        assert reply.status_code == 400
        assert "not hexadecimal" in reply.json()["error"]["message"]
    with serving(servers) as client:  # nothing is public
        assert client.post("/pick", json=keys).json()["server"] == "http://two"


def test_a_request_or_its_roots_are_asked_about(servers: list[Server]) -> None:
    with serving(servers) as client:
        assert [each.calls for each in servers] == [["start"], ["start"]]
        for body in (chat("Ada"), {"roots": list(root_keys(chat("Ada")))}):
            assert client.post("/pick", json=body).json() == {
                "server": "http://two",
                "held": 7,
            }
        assert client.post("/pick", json={"messages": []}).json()["held"] == 0
        assert client.get("/servers").json()[1] == {"url": "http://two", "alive": True}
        assert client.get("/health").status_code == 200
    assert servers[0].calls == ["start", "close"]


KEY = "p/ckers: key"


@pytest.mark.parametrize("given", [None, "", KEY, "Basic " + KEY, "Bearer", "Bearer " + KEY[:-1]])
def test_without_its_key_a_picker_tells_nothing_of_any_tenant(
    servers: list[Server], given: str | None
) -> None:
    headers = {} if given is None else {"Authorization": given}
    with serving(servers, key=KEY) as client:
        for asked in (chat("Ada"), {"roots": list(root_keys(chat("Ada", cache_salt="acme")))}):
            reply = client.post("/pick", json=asked, headers=headers)
            assert reply.status_code == 401
            assert set(reply.json()) == {"error"} and "http://" not in reply.text
        reply = client.get("/servers", headers=headers)
        assert reply.status_code == 401 and "http://" not in reply.text
        assert client.get("/health", headers=headers).status_code == 200


def test_with_its_key_a_picker_answers(servers: list[Server]) -> None:
    headers = {"Authorization": f"bearer {KEY}"}
    with serving(servers, key=KEY) as client:
        reply = client.post("/pick", json=chat("Ada"), headers=headers)
        assert reply.json() == {"server": "http://two", "held": 7}
        assert len(client.get("/servers", headers=headers).json()) == 2


def test_clients_have_the_key_in_the_address(
    servers: list[Server], caplog: pytest.LogCaptureFixture
) -> None:
    with serving(servers, key=KEY) as client:
        port = client.base_url.port
        with_key = Routing(f"http://:p%2Fckers%3A%20key@127.0.0.1:{port}")
        assert with_key.headers_of(chat("Ada")) == {HEADER: ServerKeys().key_of("http://two")}
        assert not caplog.records
        other = Routing(f"http://:another@127.0.0.1:{port}/")
        assert other.headers_of(chat("Ada")) == Routing().headers_of(chat("Ada"))
    assert "HTTP 401, it needs its key" in caplog.text and "another" not in caplog.text
    for each in (with_key, other):
        each.close()


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
        many = {"roots": [str(number) for number in range(10**5)]}
        assert client.post("/pick", json=many).status_code == 200
        assert client.post("/pick", json=chat("Ada")).status_code == 200


class Router:
    """Sends equal keys to the same of two servers and says which, as SMG does."""

    def __init__(self, *urls: str, says: bool = True) -> None:
        self.urls = urls
        self.says = says
        self.answered: list[str] = []

    def answer(self, key: str) -> dict[str, str]:
        url = self.urls[sum(key.encode()) % len(self.urls)]
        self.answered.append(url)
        return {ANSWERED_HEADER: url} if self.says else {}


def test_keys_that_lead_to_servers_are_found_by_trying(servers: list[Server]) -> None:
    router = Router("http://one", "http://two")
    with serving(servers) as client:
        routing = Routing(str(client.base_url))
        for _ in range(30):
            headers = routing.headers_of(chat("Ada"))
            routing.learn(headers, router.answer(headers[HEADER]))
        assert routing.headers_of({"messages": []}) == {}
    # It holds Ada; a quarter more than its part of the load goes there, once a key is known.
    assert 15 <= router.answered.count("http://two") <= 20
    assert set(router.answered[-8:]) == {"http://one", "http://two"}


def test_a_key_is_forgotten_when_it_leads_elsewhere() -> None:
    keys = ServerKeys()
    first = keys.key_of("http://one")
    keys.learn(first, "http://one/")
    assert keys.key_of("http://one") == first
    keys.learn(first, "http://two")  # a server was added, or one is gone
    assert keys.key_of("http://one") != first
    assert keys.key_of("http://two") == first
    keys.learn("somebody's own", "http://three")
    assert keys.key_of("http://three") != "somebody's own"


@pytest.mark.parametrize(
    ("answered", "why"),
    [
        (None, "does not say in x-smg-routed-worker-id"),
        ("http://other", "the URLs that the router"),
    ],
)
def test_a_router_that_cannot_be_understood_ends_the_asking(
    servers: list[Server], answered: str | None, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(servers) as client:
        routing = Routing(str(client.base_url))
        said = {} if answered is None else {ANSWERED_HEADER: answered}
        for _ in range(3 * MAX_TRIES):
            routing.learn(routing.headers_of(chat("Ada")), said)
        assert why in caplog.text and caplog.text.count("not asked any more") == 1
        plain = Routing()
        for _ in range(3):  # as if there were no picker
            assert set(routing.headers_of(chat("Ada"))) == set(plain.headers_of(chat("Ada")))


def test_a_picker_that_names_none_is_left_alone_for_a_while(servers: list[Server]) -> None:
    now = [0.0]
    with serving(servers) as client:
        routing = Routing(str(client.base_url), clock=lambda: now[0])
        named = routing.headers_of(chat("Ada"))
        for server in servers:
            server.is_alive = False
        by_root = routing.headers_of(chat("Ada"))
        assert set(by_root) == {HEADER} and by_root != named
        servers[1].is_alive = True
        assert routing.headers_of(chat("Ada")) == by_root
        now[0] = PICK_AGAIN_S
        assert routing.headers_of(chat("Ada")) == named


def test_a_picker_that_is_gone_costs_no_request(caplog: pytest.LogCaptureFixture) -> None:
    routing = Routing("127.0.0.1:1")
    assert set(routing.headers_of(chat("Ada"))) == {HEADER}
    assert set(routing.headers_of(chat("Ada"))) == {HEADER}
    assert sum("names no server" in each.message for each in caplog.records) == 1
    routing.close()
    for wrong in ("ftp://x", "http://one:x", "http://o\x07ne"):
        with pytest.raises(ConfigError, match=r"no address|address is none"):
            Routing(wrong)


@pytest.mark.parametrize("is_async", [False, True])
def test_transports_ask_it(servers: list[Server], is_async: bool) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={}, headers={ANSWERED_HEADER: "http://two"})

    mock = httpx.MockTransport(answer)
    kind = depcache.client.AsyncDepCacheTransport if is_async else depcache.client.DepCacheTransport
    with serving(servers) as picker:
        transport = kind(mock, picker=str(picker.base_url))
        for _ in range(2):
            request = httpx.Request("POST", "http://router/v1/chat/completions", json=chat("Ada"))
            if is_async:
                asyncio.run(transport.handle_async_request(request))
            else:
                transport.handle_request(request)
    key = ServerKeys().key_of("http://two")
    assert [each.headers[HEADER] for each in seen] == [key, key]
