# SPDX-License-Identifier: Apache-2.0
"""Two servers that say which roots they hold, and a picker that hears them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

import depcache
from depcache.picker import Listener, Picker
from depcache.prompt.roots import root_keys
from tests.helpers.ends import SLOWEST_S
from tests.helpers.server import start_server

pytestmark = pytest.mark.sglang

RELATIONS = ("knows", "likes", "lives near")


class Fleet:
    """Two servers and who listens to each."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.stacks = [ExitStack(), ExitStack()]
        self.clients: list[httpx.Client] = []
        self.listeners: list[Listener] = []
        for number, stack in enumerate(self.stacks):
            client = stack.enter_context(
                start_server(
                    model,
                    *("--max-total-tokens", "1024"),
                    log=folder / f"server-{number}.txt",
                    environment={"DEPCACHE_ROOT_EVENTS": "tcp://127.0.0.1:*"},
                )
            )
            self.clients.append(client)
            listener = Listener(str(client.base_url))
            listener.start()
            self.listeners.append(listener)
        wait_for(lambda: all(each.is_alive for each in self.listeners))

    def held(self, number: int, body: dict[str, Any]) -> list[int]:
        """Tokens of each root of a request."""
        return [self.listeners[number].roots.get(key, 0) for key in root_keys(body)]

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()
        for stack in self.stacks:
            stack.close()


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SLOWEST_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def fleet(
    model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    fleet = Fleet(model_path("llama_gqa"), tmp_path_factory.mktemp("fleet"))
    yield fleet
    fleet.close()


def chat(*names: str, **fields: Any) -> dict[str, Any]:
    paths = [(name, relation, f"{name}'s friend") for name in names for relation in RELATIONS]
    prompt = depcache.render(paths, "Who?", layout=fields.pop("layout", "tree"))
    named = {"model": "default", "max_tokens": 1, "temperature": 0.0}
    return {**named, "messages": prompt.messages, **prompt.extra_body, **fields}


def one_text() -> tuple[str, dict[str, Any]]:
    """Facts in one text, and its parameters."""
    prompt = depcache.render([("Dora", "knows", "Ed"), ("Fay", "knows", "Ed")], "Who?", system="")
    text = f"Read this. {prompt.messages[0]['content']}"
    return text, prompt.params_in(text)


def test_what_was_asked_is_held_by_the_one_that_was_asked(fleet: Fleet) -> None:
    body = chat("Ada", "Bob")
    fleet.clients[0].post("/v1/chat/completions", json=body).raise_for_status()
    wait_for(lambda: all(fleet.held(0, body)))
    assert fleet.held(1, body) == [0, 0]
    assert not any(fleet.held(0, chat("Ada", cache_salt="alice")))
    picker = Picker(fleet.listeners)
    choice = picker.pick(root_keys(chat("Ada", "Cid")))
    assert choice is not None and choice.url == fleet.listeners[0].url and choice.held > 0


@pytest.mark.parametrize(
    "fields", [{"layout": "staggered"}, {"cache_salt": "alice"}, {"extra_key": "x"}]
)
def test_keys_are_the_same_on_both_sides(fleet: Fleet, fields: dict[str, Any]) -> None:
    body = chat("Gus", **fields)
    fleet.clients[1].post("/v1/chat/completions", json=body).raise_for_status()
    wait_for(lambda: all(fleet.held(1, body)))


def test_texts_and_ids_have_keys_too(fleet: Fleet) -> None:
    text, params = one_text()
    for route, body in (
        (
            "/generate",
            {"text": text, "sampling_params": {"max_new_tokens": 1, "custom_params": params}},
        ),
        (
            "/v1/completions",
            {"model": "default", "prompt": text, "max_tokens": 1, "custom_params": params},
        ),
    ):
        fleet.clients[1].post(route, json=body).raise_for_status()
        wait_for(lambda body=body: len(root_keys(body)) == 2 and all(fleet.held(1, body)))
    custom = {
        "depcache_version": 2,
        "depcache_layout": "tree",
        "depcache_system_len": 3,
        "depcache_segment_lens": [4, 2],
        "depcache_segment_parents": [-1, -1],
    }
    ids = {
        "input_ids": [9, 8, 7, 21, 22, 23, 24, 31, 32, 5, 6],
        "sampling_params": {"max_new_tokens": 1, "custom_params": custom},
    }
    reply = fleet.clients[1].post("/generate", json=ids)
    assert reply.status_code == 200, reply.text
    wait_for(lambda: fleet.held(1, ids) == [4, 2])


def test_passages_are_roots_as_a_whole(fleet: Fleet) -> None:
    prompt = depcache.render_chunks(["A passage of words.", "Another."], "What?", recompute=None)
    body = {"model": "default", "max_tokens": 1, "messages": prompt.messages, **prompt.extra_body}
    fleet.clients[1].post("/v1/chat/completions", json=body).raise_for_status()
    wait_for(lambda: len(root_keys(body)) == 2 and all(fleet.held(1, body)))
    # A fused request reads the same rows.
    again = depcache.render_chunks(["Another.", "A passage of words."], "What?", recompute=0.1)
    fused = {"messages": again.messages, **again.extra_body}
    assert set(root_keys(fused)) == set(root_keys(body))


def test_what_is_evicted_or_flushed_is_held_no_more(fleet: Fleet) -> None:
    body = chat("Hal")
    fleet.clients[0].post("/v1/chat/completions", json=body).raise_for_status()
    wait_for(lambda: all(fleet.held(0, body)))
    for number in range(30):
        other = chat(*(f"Someone {number} {each}" for each in range(3)))
        fleet.clients[0].post("/v1/chat/completions", json=other).raise_for_status()
    wait_for(lambda: not any(fleet.held(0, body)))
    wait_for(lambda: all(fleet.held(0, other)))
    fleet.clients[0].post("/depcache/flush", params={"timeout": 60}).raise_for_status()
    wait_for(lambda: not fleet.listeners[0].roots)


def test_the_status_says_where_and_the_route_says_all(fleet: Fleet) -> None:
    body = chat("Ida")
    fleet.clients[0].post("/v1/chat/completions", json=body).raise_for_status()
    wait_for(lambda: all(fleet.held(0, body)))
    status = fleet.clients[0].get("/depcache/status").json()["cache"]["root_events"]
    told = fleet.clients[0].get("/depcache/roots").json()
    assert status["run"] == told["run"] and told["number"] > 0
    assert set(root_keys(body)) <= told["roots"].keys()


def test_a_picker_leaves_out_a_server_that_was_killed(fleet: Fleet) -> None:
    body = chat("Jo")
    fleet.clients[1].post("/v1/chat/completions", json=body).raise_for_status()
    wait_for(lambda: all(fleet.held(1, body)))
    picker = Picker(fleet.listeners)
    choice = picker.pick(root_keys(body))
    assert choice is not None and choice.url == fleet.listeners[1].url
    fleet.stacks[1].close()
    wait_for(lambda: not fleet.listeners[1].is_alive)
    choice = picker.pick(root_keys(body))
    assert choice is not None and choice.url == fleet.listeners[0].url
