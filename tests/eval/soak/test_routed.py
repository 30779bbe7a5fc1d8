# SPDX-License-Identifier: Apache-2.0
"""What goes through a router: requests that it takes, and servers of which one may die."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from depcache.errors import ConfigError, ServerError
from eval.soak import routed
from eval.soak.routed import Routed, draw_routed
from tests.eval.soak.made import prompt_of

pytestmark = pytest.mark.sglang


def test_a_router_gets_only_what_it_takes_and_can_be_judged_as_far_as_said() -> None:
    rng = random.Random(3)
    chat = replace(prompt_of("tree"), messages=[{"role": "user", "content": "x"}])
    told = set()
    for prompt in (prompt_of("tree"), prompt_of("plain"), chat):
        for _ in range(60):
            request = draw_routed(rng, prompt, 4, model="the model")
            told.add(request.route)
            if request.route != "/generate":
                assert request.body["model"] == "the model"
                assert request.is_stream and not request.can_be_judged
                assert not isinstance(request.body.get("prompt"), list)
    assert told == {"/generate", "/v1/chat/completions"}


@dataclass
class Half:
    """As much of a server as a router's own part needs."""

    url: str
    is_running: bool = True

    def kill(self) -> None:
        self.is_running = False

    def stop(self) -> None:
        self.is_running = False

    def log_tail(self) -> str:
        return f"log of {self.url}"


def make_routed(tmp_path: Path, replies: list[list[str]], monkeypatch: Any) -> Routed:
    """A router that answers with these healthy servers, one reply after the other."""

    def get(url: str, timeout: float) -> httpx.Response:
        healthy = replies.pop(0) if len(replies) > 1 else replies[0]
        known: list[dict[str, Any]] = [{"url": each, "is_healthy": True} for each in healthy]
        known.append({"url": "http://gone", "is_healthy": False})
        return httpx.Response(200, json={"workers": known})

    monkeypatch.setattr(routed.httpx, "get", get)
    servers: list[Any] = [Half("http://one"), Half("http://two")]
    found = Routed(servers, tmp_path / "smg", tmp_path)
    found.url = "http://router"
    return found


def test_a_killed_server_is_waited_for_until_it_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routed, "_POLL_S", 0.01)
    both = ["http://one", "http://two"]
    found = make_routed(tmp_path, [both, both, both[1:]], monkeypatch)
    assert found.rest_urls == both
    assert 0.02 <= found.kill_one() < 30
    assert not found.is_ending and found.rest_urls == both[1:]
    assert "log of http://two" in found.log_tail()
    found.stop()
    assert found.is_ending and not found.is_running


def test_a_router_that_keeps_a_dead_server_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routed, "NOTICED_S", 0.05)
    monkeypatch.setattr(routed, "_POLL_S", 0.01)
    found = make_routed(tmp_path, [["http://one"]], monkeypatch)
    with pytest.raises(ServerError, match="knows a server that died"):
        found.kill_one()


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    servers: list[Any] = [Half("http://127.0.0.1:1")]
    with pytest.raises((ConfigError, ServerError), match="smg"):
        Routed(servers, tmp_path / "smg", tmp_path).start()
