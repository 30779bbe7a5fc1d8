# SPDX-License-Identifier: Apache-2.0
"""The routing key names one root entity of a prompt, the same for every spelling of a request."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import httpx
import pytest

import depcache
from depcache.client import DepCacheTransport
from depcache.client.client import Client
from depcache.client.routing import HEADER, RoutingKeys
from depcache.prompt.roots import roots_of
from tests.depcache.client.fake_server import FakeServer

URL = "http://test/v1/chat/completions"
PATHS = [
    ("Ada", "knows", "Bob"),
    ("Ada", "lives in", "Rome"),
    ("Cid", "knows", "Ada"),
]


def chat(paths: Any = PATHS, **fields: Any) -> dict[str, Any]:
    prompt = depcache.render(paths, "Who?", **fields)
    return {"messages": prompt.messages, **prompt.extra_body}


@pytest.mark.parametrize(
    "outline",
    [
        None,
        5,
        {},
        {"start": 0, "lens": [10**9], "rows": [4]},
        {"start": "x", "lens": [1], "rows": [1]},
        {"start": 0, "lens": [1], "rows": [1], "message": 9},
    ],
)
def test_what_the_server_will_refuse_has_no_roots(outline: Any) -> None:
    body = chat()
    body["custom_params"] = {"depcache_outline": outline}
    assert roots_of(body) == []
    assert RoutingKeys().headers_of(body) == {}


def test_plain_requests_have_no_key() -> None:
    keys = RoutingKeys()
    assert keys.headers_of({"messages": [{"role": "user", "content": "Hello"}]}) == {}
    assert keys.headers_of({"text": "Hello", "sampling_params": {}}) == {}
    assert keys.key_of([]) is None


def test_the_key_is_of_the_entity_that_was_met_least_and_of_no_order() -> None:
    keys = RoutingKeys()
    [ada] = {RoutingKeys().key_of(["Ada"])}
    for _ in range(3):
        assert keys.key_of(["Ada"]) == ada
    cid = RoutingKeys().key_of(["Cid"])
    assert keys.key_of(["Ada", "Cid"]) == cid != ada
    one, other = RoutingKeys(), RoutingKeys()
    assert one.key_of(["a", "b", "c"]) == other.key_of(["c", "a", "b", "a"])
    assert "Ada" not in str(ada)


def test_what_was_met_long_ago_is_forgotten() -> None:
    keys = RoutingKeys(max_counted=10)
    for number in range(1000):
        keys.key_of([str(number)])
    assert len(keys.counts) == 10


def test_threads_lose_no_count() -> None:
    keys = RoutingKeys()

    def ask() -> None:
        for _ in range(500):
            keys.key_of(["a", "b"])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(keys.counts.values()) == {2000}


def test_popular_entities_do_not_pull_all_requests_to_one_key() -> None:
    """One entity is in every prompt; the keys are of the others."""
    keys = RoutingKeys()
    found = Counter(keys.key_of(["everywhere", str(number % 40)]) for number in range(4000))
    assert max(found.values()) <= 101


def test_client_and_transport_send_the_same_key() -> None:
    server = FakeServer()
    with httpx.Client(transport=server.transport) as http:
        client = Client("http://test", http_client=http)
        client.ask(PATHS, "Who?")
        client.chat([{"role": "user", "content": "Hello"}])
    sent = [headers.get(HEADER) for headers in server.headers]
    assert sent == [RoutingKeys().key_of(["Ada", "Cid"]), None]
    with httpx.Client(transport=DepCacheTransport(server.transport, merge=True)) as http:
        http.post(URL, json=chat())  # rendered by the caller: the body stays as it is
        text = "\n".join(" -> ".join(path) for path in PATHS)
        http.post(URL, json={"messages": [{"role": "user", "content": f"Facts:\n{text}\n\nWho?"}]})
        http.post(URL, json={"messages": [{"role": "user", "content": "Hello"}]})
        http.post(URL, json=chat(), headers={HEADER: "mine"})
    sent += [headers.get(HEADER) for headers in server.headers[2:]]
    assert sent[2:] == [sent[0], sent[0], None, "mine"]
