# SPDX-License-Identifier: Apache-2.0
"""Events of roots over a real socket, from a tree that changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from depcache.cache import KVTree
from depcache.cache.radix import to_key
from depcache.errors import ConfigError
from depcache.prompt.roots import TOPIC

pytestmark = pytest.mark.sglang


class State:
    """What `RootEvents` reads of a request."""

    def __init__(self, roots: Any) -> None:
        self.namespace = "tenant"
        self.roots = roots


def state(**roots: list[int]) -> Any:
    return State({"system": [1, 2], "roots": [[key, ids] for key, ids in roots.items()]})


class Heard:
    """A server's events, and who listens to them."""

    def __init__(self) -> None:
        from sglang_patches.observe.root_events import RootEvents, Watchers

        self.now = 0.0
        self.tree = KVTree()
        self.events = RootEvents(self.tree, "tcp://127.0.0.1:*", clock=lambda: self.now)
        self.tree.watcher = Watchers(self.events.held)
        self.socket: Any = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, TOPIC)
        self.socket.connect(self.events.endpoint)
        while not self.socket.poll(20):  # a subscription takes its time
            self.now += 1
            self.events.poll()
        while self.socket.poll(20):
            self.socket.recv_multipart()

    def cache(self, *tokens: int) -> None:
        key = to_key(np.array([1, 2, *tokens], np.int64))
        slots = np.arange(len(tokens) + 2)
        self.tree.insert(self.tree.root("tenant"), key, slots, 0)

    def listen(self) -> list[tuple[int, dict[str, Any]]]:
        found = []
        while self.socket.poll(100):
            _, number, payload = self.socket.recv_multipart()
            _, [event], rank = msgspec.msgpack.decode(payload)
            assert rank == 0
            found.append((int.from_bytes(number, "big"), event))
        return found


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    yield heard
    heard.socket.close(linger=0)
    heard.events.close()


def test_what_is_cached_and_evicted_is_said(heard: Heard) -> None:
    heard.cache(10, 11, 12)
    heard.events.note_request(state(ada=[10], bob=[20]))
    heard.now += 0.2
    heard.events.poll()
    before = heard.events.number
    run = heard.events.run
    assert heard.listen() == [(before, {"type": "RootsHeld", "run": run, "roots": {"ada": 3}})]
    assert heard.events.snapshot() == {"run": run, "number": before, "roots": {"ada": 3}}
    heard.tree.evict(10)
    heard.now += 0.2
    heard.events.poll()
    assert heard.listen() == [(before + 1, {"type": "RootsHeld", "run": run, "roots": {"ada": 0}})]
    assert heard.events.describe()["roots"] == 0


def test_a_message_comes_every_second_though_nothing_changes(heard: Heard) -> None:
    for _ in range(10):
        heard.now += 0.3
        heard.events.poll()
    told = heard.listen()
    assert [event["roots"] for _, event in told] == [{}] * len(told)
    assert len(told) == 2  # of 3 seconds in steps of 0.3
    assert [number for number, _ in told] == list(range(told[0][0], told[0][0] + len(told)))


def test_changes_of_a_moment_come_together(heard: Heard) -> None:
    heard.now += 0.2
    heard.cache(10)
    heard.events.note_request(state(ada=[10]))
    heard.events.poll()
    for token in range(11, 15):
        heard.cache(10, token)
        heard.events.note_request(state(ada=[10]))
        heard.events.poll()
    heard.now += 0.2
    heard.events.poll()
    assert [event["roots"] for _, event in heard.listen()] == [{"ada": 1}, {"ada": 5}]


def test_a_request_without_roots_or_with_odd_ones_ends_well(
    heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    heard.events.note_request(State(None))  # type: ignore[arg-type]
    heard.events.note_request(State({"roots": [["key"]]}))  # type: ignore[arg-type]
    heard.now += 5
    heard.events.poll()
    assert len(heard.events.held) == 0


def test_an_address_that_cannot_be_used_is_an_error(heard: Heard) -> None:
    from sglang_patches.observe.root_events import RootEvents

    for endpoint in (heard.events.endpoint, "tcp://nowhere", "5557"):
        with pytest.raises(ConfigError, match="set a ZeroMQ address"):
            RootEvents(KVTree(), endpoint)
