# SPDX-License-Identifier: Apache-2.0
"""What is known of a server by what it says, also where some of it is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest
import zmq

from depcache.picker.listener import SILENT_S, Listener, endpoint_from_here
from depcache.prompt.roots import TOPIC


class FakeServer:
    """Says what it is told to over a real socket; its routes answer in this process."""

    def __init__(self) -> None:
        self.socket: Any = zmq.Context.instance().socket(zmq.PUB)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://0.0.0.0:{port}"
        self.run, self.number = "first", 0
        self.roots: dict[str, int] = {}
        self.num_asked = 0
        self.publishes = True

    def say(self, *, is_lost: bool = False, **roots: int) -> None:
        self.number += 1
        self.roots = {k: v for k, v in (self.roots | roots).items() if v}
        event = {"type": "RootsHeld", "run": self.run, "roots": roots}
        payload = msgspec.msgpack.encode([time.time(), [event], 0])
        if not is_lost:
            self.socket.send_multipart([TOPIC, self.number.to_bytes(8, "big"), payload])

    def start_again(self) -> None:
        self.run, self.number, self.roots = "second", 0, {}

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/depcache/status":
            events = {"endpoint": self.endpoint} if self.publishes else None
            return httpx.Response(200, json={"cache": {"root_events": events}})
        assert request.url.path == "/depcache/roots"
        self.num_asked += 1
        told = {"run": self.run, "number": self.number, "roots": self.roots}
        return httpx.Response(200, json=told)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.socket.close(linger=0)


@pytest.fixture
def listener(server: FakeServer) -> Iterator[Listener]:
    http = httpx.Client(base_url="http://127.0.0.1:1", transport=httpx.MockTransport(server.answer))
    listener = Listener("http://127.0.0.1:1", http_client=http)
    yield listener
    listener.close()


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def begin(listener: Listener, server: FakeServer) -> None:
    """Say something until it is heard: a subscription takes its time."""
    listener.start()
    while not listener.is_alive:
        server.say()
        time.sleep(0.02)


def test_it_knows_what_is_held(listener: Listener, server: FakeServer) -> None:
    server.say(a=3)  # before anybody listens
    assert not listener.is_alive
    begin(listener, server)
    server.say(b=5)
    wait_for(lambda: listener.roots == {"a": 3, "b": 5})
    server.say(a=0)
    wait_for(lambda: listener.roots == {"b": 5})
    assert server.num_asked == 1
    told = listener.describe()
    assert told["alive"] and told["roots"] == 1 and told["tokens"] == 5 and told["missed"] == 0


def test_what_was_lost_is_asked_for(listener: Listener, server: FakeServer) -> None:
    begin(listener, server)
    server.say(a=3)
    server.say(b=4, is_lost=True)
    server.say(a=0, is_lost=True)
    server.say(c=5)
    wait_for(lambda: listener.roots == {"b": 4, "c": 5})
    assert listener.num_missed == 1
    server.say(d=1)
    wait_for(lambda: listener.roots == {"b": 4, "c": 5, "d": 1})
    assert server.num_asked == 2


def test_a_server_that_starts_again_holds_nothing(listener: Listener, server: FakeServer) -> None:
    begin(listener, server)
    server.say(a=3)
    wait_for(lambda: listener.roots == {"a": 3})
    server.start_again()
    server.say(b=1)
    wait_for(lambda: listener.roots == {"b": 1})


def test_one_that_ended_is_left_out_without_waiting(
    listener: Listener, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("depcache.picker.listener.SILENT_S", 1e9)
    begin(listener, server)
    server.socket.close(linger=0)
    wait_for(lambda: not listener.is_alive)


def test_one_that_is_silent_is_left_out(
    listener: Listener, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(listener, server)
    assert listener.is_alive
    later = time.monotonic() + SILENT_S + 1
    monkeypatch.setattr("depcache.picker.listener.time.monotonic", lambda: later)
    assert not listener.is_alive


def test_one_without_events_says_what_to_do(
    listener: Listener, server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.publishes = False
    listener.start()
    wait_for(lambda: listener.problem is not None)
    assert "DEPCACHE_ROOT_EVENTS=tcp://" in str(listener.problem)
    assert not listener.is_alive
    server.publishes = True
    wait_for(lambda: bool(server.say()) or listener.is_alive)
    assert listener.problem is None


def test_it_ends_when_it_is_closed() -> None:
    listener = Listener("http://127.0.0.1:1")
    listener.start()
    listener.close()
    assert not [each for each in threading.enumerate() if each.name == "roots http://127.0.0.1:1"]


@pytest.mark.parametrize(
    ("bound", "url", "expected"),
    [
        ("tcp://0.0.0.0:5557", "http://one:30000", "tcp://one:5557"),
        ("tcp://127.0.0.1:5557", "http://localhost:30000", "tcp://localhost:5557"),
        ("tcp://[::]:5557", "http://[2001:db8::1]:30000", "tcp://[2001:db8::1]:5557"),
        ("ipc:///run/roots", "http://localhost:30000", "ipc:///run/roots"),
    ],
)
def test_the_endpoint_is_on_the_servers_host(bound: str, url: str, expected: str) -> None:
    assert endpoint_from_here(bound, url) == expected
