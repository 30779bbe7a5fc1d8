# SPDX-License-Identifier: Apache-2.0
"""What one server holds, by its root events: `sglang_patches.observe.root_events`.

A message that was missed is no harm: the numbers tell, and the server is asked for all of it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from depcache.errors import ServerError
from depcache.prompt.roots import TOPIC

logger = logging.getLogger("depcache")

SILENT_S = 10.0
"""A server that says nothing for so long is left out. It says something every second, but for the
time of a long batch; one that ends is left out at once, as its connection ends."""

RETRY_S = 0.5
TIMEOUT_S = 10.0


class Listener:
    """Listens to one server in a thread of its own, from `start` until `close`.

    url      of the server
    api_key  the admin's, where it has one
    http_client  what asks it, instead of one of its own; closed with it

    What it knows may be late by some tenths of a second, and is empty until the server has answered
    once. A server that starts again is empty again.
    """

    def __init__(
        self, url: str, api_key: str | None = None, *, http_client: httpx.Client | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self.num_missed = 0
        self.problem: str | None = None
        self._roots: dict[str, int] = {}
        self._run: str | None = None
        self._number = 0
        self._heard_s = -math.inf
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http = http_client or httpx.Client(
            base_url=self.url, headers=headers, timeout=TIMEOUT_S
        )
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True, name=f"roots {url}")

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening; the server counts as dead."""
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join(TIMEOUT_S)
        self._http.close()

    @property
    def is_alive(self) -> bool:
        """Whether it was heard lately."""
        return time.monotonic() - self._heard_s < SILENT_S and not self._is_closed.is_set()

    @property
    def roots(self) -> Mapping[str, int]:
        """Tokens by root; it changes while one reads, one root at a time."""
        return self._roots

    def describe(self) -> dict[str, Any]:
        """What people ask of it."""
        return {
            "url": self.url,
            "alive": self.is_alive,
            "roots": len(self._roots),
            "tokens": sum(list(self._roots.values())),
            "missed": self.num_missed,
            "problem": self.problem,
        }

    def _listen(self) -> None:
        while not self._is_closed.is_set():
            try:
                self._hear(self._find_endpoint())
            except Exception as error:  # whatever it is, the server may be there again soon
                if str(error) != self.problem:
                    logger.warning("%s tells nothing of its roots: %s", self.url, error)
                self.problem = str(error)
                self._is_closed.wait(RETRY_S)

    def _find_endpoint(self) -> str:
        status = self._http.get("/depcache/status").raise_for_status().json()
        events = status["cache"].get("root_events")
        if events is None:
            raise ServerError(
                f"{self.url} publishes no root events: start it with "
                "DEPCACHE_ROOT_EVENTS=tcp://0.0.0.0:5557, an address that is free there"
            )
        return endpoint_from_here(events["endpoint"], self.url)

    def _hear(self, endpoint: str) -> None:
        """Take what comes until the server ends or is silent. Raises ServerError then."""
        import zmq

        with zmq.Context.instance().socket(zmq.SUB) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SUBSCRIBE, TOPIC)
            ended = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            socket.connect(endpoint)
            begun_s = time.monotonic()
            try:
                while not self._is_closed.is_set():
                    if ended.poll(0):
                        self._heard_s = -math.inf
                        raise ServerError(f"{self.url} has ended, or its connection has")
                    if socket.poll(200):
                        _, number, payload = socket.recv_multipart()
                        self.take(int.from_bytes(number, "big"), payload)
                        self._heard_s = time.monotonic()
                        self.problem = None
                    elif time.monotonic() - max(self._heard_s, begun_s) > SILENT_S:
                        # It may have another address when it comes back.
                        raise ServerError(f"{self.url} is silent for {SILENT_S:g} s at {endpoint}")
            finally:
                socket.disable_monitor()

    def take(self, number: int, payload: bytes) -> None:
        """One message; all that the server holds is asked for where one before it was missed."""
        _, events, _ = msgspec.msgpack.decode(payload)
        run = events[0]["run"]
        if run == self._run and number <= self._number:
            return  # told by the snapshot
        if run != self._run or number != self._number + 1:
            self.num_missed += self._run is not None
            self._ask_for_all()
            if run == self._run and number <= self._number:
                return
        self._number = number
        for event in events:
            for root, held in event["roots"].items():
                if held:
                    self._roots[root] = held
                else:
                    self._roots.pop(root, None)

    def _ask_for_all(self) -> None:
        told = self._http.get("/depcache/roots").raise_for_status().json()
        self._roots = told["roots"]
        self._run, self._number = told["run"], told["number"]


def endpoint_from_here(endpoint: str, url: str) -> str:
    """Where to connect to what a server has bound: its port, on the host that it is called by."""
    parts = urlsplit(endpoint)
    if parts.scheme != "tcp":
        return endpoint
    host = urlsplit(url).hostname
    host = f"[{host}]" if host is not None and ":" in host else host
    return f"tcp://{host}:{parts.port}"
