# SPDX-License-Identifier: Apache-2.0
"""Several servers behind a router, as a storm sees them: one address, of which a part may die."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx

from depcache.errors import ServerError
from eval.fleet.router import route
from eval.soak.prompts import Prompt
from eval.soak.questions import Request, draw_request
from eval.soak.server import Server

NOTICED_S = 30.0
"""A router that does not leave out a dead server for so long is broken."""
_POLL_S = 0.2

ACTIONS = {"ask": 60, "close": 20, "ask_long": 3, "burst": 0.3}
"""What clients do through a router, which has no other of our routes and of SGLang's."""


def draw_routed(
    rng: random.Random, prompt: Prompt, num_new: int | None = None, *, model: str
) -> Request:
    """As `draw_request`, but for SMG.

    It wants the model's name, and of the OpenAI routes it takes no tokens and asks for none: of
    their answers only streams are asked for, which are not judged but for their end.
    """
    while True:
        request = draw_request(rng, prompt, num_new)
        if request.route == "/generate":
            return request
        if request.is_stream and not isinstance(request.body.get("prompt"), list):
            request.body["model"] = model
            return request


class Routed:
    """Servers and SMG in front of them, from `start` to `stop`.

    smg    the command
    model  the name by which it is asked

    Raises ConfigError where there is no such command, ServerError where something does not start.
    """

    def __init__(self, servers: Sequence[Server], smg: Path, folder: Path) -> None:
        self.url = self.model = ""
        self.is_ending = False
        self._servers = servers
        self._smg = smg
        self._folder = folder
        self._router = ExitStack()

    def start(self) -> None:
        """Start those that do not run, and the router."""
        for server in self._servers:
            if not server.is_running:
                server.start()
        urls = [server.url for server in self._servers]
        router = route(self._smg, "consistent_hashing", urls, self.log_file)
        self.url = self._router.enter_context(router)
        models = httpx.get(f"{urls[0]}/v1/models", timeout=60).json()
        self.model = models["data"][0]["id"]
        self.is_ending = False

    def stop(self) -> None:
        """End them all. Safe to call twice."""
        self.is_ending = True
        self._router.close()
        for server in self._servers:
            server.stop()

    def kill_one(self) -> float:
        """SIGKILL to the first server; seconds until the router has left it out.

        What is cut off meanwhile is cut off by us. Raises ServerError where it is never left out.
        """
        self.is_ending = True
        started = time.monotonic()
        self._servers[0].kill()
        while any(each["url"] == self._servers[0].url for each in self._healthy()):
            if time.monotonic() > started + NOTICED_S:
                raise ServerError(
                    f"the router still knows a server that died {NOTICED_S:.0f} s ago"
                )
            time.sleep(_POLL_S)
        self.is_ending = False
        return time.monotonic() - started

    def _healthy(self) -> Iterator[dict[str, str]]:
        workers = httpx.get(f"{self.url}/workers", timeout=60).json().get("workers") or []
        return (each for each in workers if each.get("is_healthy"))

    @property
    def log_file(self) -> Path:
        return self._folder / "router.log"

    @property
    def is_running(self) -> bool:
        """Whether a server is left that answers."""
        return any(each.is_running for each in self._servers)

    @property
    def rest_urls(self) -> list[str]:
        """Addresses of the servers that run: what each holds is asked of itself."""
        return [each.url for each in self._servers if each.is_running]

    def log_tail(self) -> str:
        """The last lines of the servers' logs."""
        return "\n".join(each.log_tail() for each in self._servers)
