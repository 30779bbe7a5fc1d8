# SPDX-License-Identifier: Apache-2.0
"""Says which roots a server holds, as it changes: for whoever chooses the server of a request.

Messages of ZeroMQ, framed as SGLang frames its KV events: topic, number (8 bytes, big-endian) and
msgpack `[time, [events], rank]`. Numbers go up by one. Whoever has missed one, or came late, asks
`GET /depcache/roots` for all that is held and the number up to which that is told. A message that
is lost costs reuse and nothing else.

    {"type": "RootsHeld", "run": ..., "roots": {key: tokens}}

`run` is another one after a restart. A root of 0 tokens is gone. Without changes an empty message
comes every second, so that a listener knows that it has missed nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import zmq

from depcache.cache import KVTree, Node
from depcache.cache.held import HeldRoots
from depcache.cache.radix import to_key
from depcache.cache.records import Watcher
from depcache.errors import ConfigError
from depcache.prompt.roots import TOPIC
from sglang_patches.requests.faults import note_fault
from sglang_patches.requests.state import RequestState
from sglang_patches.tiers.names import HOST

INTERVAL_S = 0.1
"""Between two messages, at least."""

ALIVE_S = 1.0


class RootsHeld(msgspec.Struct, tag=True, kw_only=True):
    """What changed: tokens by root. See the module."""

    run: str
    roots: dict[str, int]


class Watchers:
    """Several watchers as one."""

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers = watchers

    def note_tick(self, tick: int) -> None:
        """The tree's clock moved to `tick`."""
        for watcher in self._watchers:
            watcher.note_tick(tick)

    def note_eviction(self, tier: str, node: Node) -> None:
        """`node` loses its KV in `tier`."""
        for watcher in self._watchers:
            watcher.note_eviction(tier, node)


class RootEvents:
    """The roots that a cache holds, and the socket that says so.

    endpoint  ZeroMQ address to listen on, such as tcp://127.0.0.1:5557

    Raises ConfigError where it cannot be used. What fails later costs events and no request.
    """

    def __init__(
        self, tree: KVTree, endpoint: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.held = HeldRoots(tree, (HOST,))
        self.run = uuid4().hex
        self.number = 0
        self._clock = clock
        self._sent_s = clock() - ALIVE_S
        self._encode = msgspec.msgpack.Encoder().encode
        self._socket: Any = zmq.Context.instance().socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._socket.close()
            raise ConfigError(
                f"root_events is {endpoint!r}, where nobody can listen ({error}): set a ZeroMQ "
                "address of this machine that is free, such as tcp://127.0.0.1:5557"
            ) from None
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def note_request(self, state: RequestState) -> None:
        """A request has cached some of its context."""
        roots = state.roots
        if roots is not None:
            try:
                self.held.note_request(
                    state.namespace,
                    _to_key(roots["system"]),
                    [(key, _to_key(ids)) for key, ids in roots["roots"]],
                )
            except Exception as error:
                note_fault("note what a request begins with", error)

    def poll(self) -> None:
        """Send what has changed, if it is time to."""
        now = self._clock()
        if now - self._sent_s < INTERVAL_S:
            return
        try:
            changes = self.held.take_changes()
            if changes or now - self._sent_s >= ALIVE_S:
                self._sent_s = now
                self._send(changes)
        except Exception as error:
            self._sent_s = now
            note_fault("send root events", error)

    def _send(self, changes: dict[str, int]) -> None:
        self.number += 1
        batch = [time.time(), [RootsHeld(run=self.run, roots=changes)], 0]
        frames = [TOPIC, self.number.to_bytes(8, "big"), self._encode(batch)]
        # A listener that does not read is left out by ZeroMQ; nobody waits for it.
        self._socket.send_multipart(frames, zmq.NOBLOCK)

    def describe(self) -> dict[str, Any]:
        """What the status route says of it."""
        return {"endpoint": self.endpoint, "run": self.run, "roots": len(self.held)}

    def snapshot(self) -> dict[str, Any]:
        """All that is held, as it was told up to `number`."""
        return {"run": self.run, "number": self.number, "roots": self.held.held()}

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _to_key(ids: list[int]) -> bytes:
    return to_key(np.array(ids, np.int64))
