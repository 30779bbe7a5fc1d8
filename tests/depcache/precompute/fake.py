# SPDX-License-Identifier: Apache-2.0
"""A DepCache server in memory that caches path beginnings for ever, a token per element."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from types import ModuleType
from typing import Any

import httpx
import pytest

from depcache.client import Client
from depcache.prompt.paths import Path
from tests.helpers.rendered import paths_of

SYSTEM_LEN = 10
BYTES_PER_TOKEN = 100


class FakeCache:
    """What a server holds and was asked.

    sent         the paths of every chat that was answered, in order
    invalidated  the same of every request to invalidate
    on_chat      called with the paths before they are computed; may raise, or give an answer;
                 on_invalidate likewise
    disk_tokens  of the disk tier; None where there is none
    on_disk      path beginnings that the disk tier alone has; a chat about them loads them
    """

    def __init__(self, capacity_tokens: int = 10_000) -> None:
        self.cached: set[Path] = set()
        self.sent: list[list[Path]] = []
        self.invalidated: list[list[Path]] = []
        self.bodies: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.on_chat: Callable[[list[Path]], httpx.Response | None] = lambda paths: None
        self.on_invalidate: Callable[[list[Path]], httpx.Response | None] = lambda paths: None
        self.model = "model-a"
        self.capacity_tokens = capacity_tokens
        self.disk_tokens: int | None = None
        self.on_disk: set[Path] = set()
        self.can_persist = True
        self._lock = Lock()

    @contextmanager
    def client(self) -> Iterator[Client]:
        with (
            httpx.Client(transport=httpx.MockTransport(self.answer)) as http,
            Client(http_client=http) as client,
        ):
            yield client

    def take_place(self, monkeypatch: pytest.MonkeyPatch, command: ModuleType) -> httpx.Client:
        """Have a command's module talk to this server; returns what it talks through."""
        http = httpx.Client(transport=httpx.MockTransport(self.answer))
        monkeypatch.setattr(command, "Client", lambda url, key: Client(url, key, http_client=http))
        return http

    def answer(self, request: httpx.Request) -> httpx.Response:
        with self._lock:
            return self._answer(request)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        route = request.url.path
        self.asked.append(route)
        if route == "/depcache/status":
            return httpx.Response(200, json={"version": "1", "active": True})
        if route == "/depcache/stats":
            return httpx.Response(200, json={"tiers": self._tiers()})
        if route == "/model_info":
            return httpx.Response(200, json={"model_path": self.model})
        if route == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 4096}]})
        if route == "/health":
            return httpx.Response(200)
        if route == "/depcache/persist" and self.can_persist:
            assert self.disk_tokens is not None
            waiting = len(self.cached) - self.disk_tokens
            self.disk_tokens = len(self.cached)
            return httpx.Response(200, json={"tokens": waiting})
        routes = ("/depcache/explain", "/depcache/invalidate", "/v1/chat/completions")
        if route not in routes:
            return httpx.Response(404, json={"detail": "Not Found"})
        body = json.loads(request.content)
        paths = read_paths_of(body)
        if route == "/depcache/invalidate":
            # The last row is the one that no other stands behind, or sees.
            is_end = request.url.params.get("ends_only") == "true"
            return self._invalidate(paths[-1:] if is_end else paths, body)
        is_chat = route == "/v1/chat/completions"
        if is_chat:
            assert body["max_tokens"] == 1
            if (response := self.on_chat(paths)) is not None:
                return response
        report = self._report(paths)
        if not is_chat:
            return httpx.Response(200, json={**report, "table": [{"start": SYSTEM_LEN}]})
        self.cached |= beginnings(paths) | {()}
        self.sent.append(paths)
        self.bodies.append(body)
        choice = {"index": 0, "message": {"content": "-"}, "finish_reason": "length"}
        return httpx.Response(200, json={"choices": [choice], "metadata": {"depcache": report}})

    def _invalidate(self, paths: list[Path], body: dict[str, Any]) -> httpx.Response:
        if (response := self.on_invalidate(paths)) is not None:
            return response
        self.invalidated.append(paths)
        self.bodies.append(body)
        gone = {path for path in self.cached if any(path[: len(p)] == p for p in paths)}
        self.cached -= gone
        return httpx.Response(200, json={"tokens": {"device": len(gone)}, "in_use": 0})

    def _report(self, paths: list[Path]) -> dict[str, Any]:
        wanted = beginnings(paths)
        system = 0 if () in self.cached else SYSTEM_LEN
        missed = len(wanted - self.cached) + system
        on_disk = len(wanted & self.on_disk - self.cached)
        on_disk += system if () in self.on_disk else 0
        context_len = len(wanted) + SYSTEM_LEN
        return {
            "prompt_tokens": context_len + 3,
            "context_tokens": context_len,
            "shared": context_len - missed,
            "missed": missed,
            "on_disk": on_disk,
            "plain": 3,
        }

    def _tiers(self) -> dict[str, Any]:
        num = len(self.cached)
        tiers: dict[str, Any] = {
            "device": {
                "tokens": num,
                "bytes": num * BYTES_PER_TOKEN,
                "bytes_per_token": BYTES_PER_TOKEN,
                "capacity_tokens": self.capacity_tokens,
            }
        }
        if self.disk_tokens is not None:
            tiers["disk"] = {"tokens": self.disk_tokens, "capacity_bytes": 10**9}
        return tiers

    def has_entity(self, paths: list[Path]) -> bool:
        """Whether a question about these paths would miss nothing."""
        return beginnings(paths) <= self.cached


def read_paths_of(body: dict[str, Any]) -> list[Path]:
    """The paths of a request, after the checks that the real server makes."""
    return paths_of(body)


def beginnings(paths: list[Path]) -> set[Path]:
    return {path[:stop] for path in paths for stop in range(1, len(path) + 1)}


def refused(message: str = "too long") -> httpx.Response:
    return httpx.Response(400, json={"message": message})
