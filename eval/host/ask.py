# SPDX-License-Identifier: Apache-2.0
"""Ask a server one thing again and again, with next to no work on this side.

A body is encoded once and sent as it is over one open connection. A client that makes its JSON
anew for each request would take its milliseconds from the same cores.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from depcache.errors import ServerError

TIMEOUT_S = 600.0
_EVENT = b"data: "
_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Body:
    """One request, ready to be sent.

    route  of the OpenAI API, as `/v1/chat/completions`
    data   its JSON
    """

    route: str
    data: bytes

    @classmethod
    def make(cls, route: str, fields: dict[str, Any], *, max_tokens: int) -> Body:
        """A streamed, greedy request of these fields, whose answer has `max_tokens` tokens."""
        whole = fields | {
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        text = json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
        return cls(route, text.encode())


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    ttft_ms          from the call to the first event, which comes with the first token
    e2e_ms           from the call to the end of the stream
    prompt_tokens    as the server counts them
    computed_tokens  those of the prompt that were in no cache
    """

    ttft_ms: float
    e2e_ms: float
    prompt_tokens: int
    computed_tokens: int


class Asker:
    """Asks a server over one connection, for as long as the `with` block.

    url  of the server, without `/v1`
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._url = url
        self._connection = HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, body: Body) -> Answer:
        """Raises ServerError when it is refused, breaks off or says nothing of its usage."""
        try:
            return _ask(self._connection, body)
        except (OSError, HTTPException, ValueError) as error:
            raise ServerError(
                f"a request to {self._url} failed: {type(error).__name__}: {error}"
            ) from error


def ask_all(url: str, bodies: Sequence[Body]) -> list[Answer]:
    """Ask for one after the other over one connection; their answers. Raises as `Asker.ask`."""
    with Asker(url) as asker:
        return [asker.ask(body) for body in bodies]


def _ask(connection: HTTPConnection, body: Body) -> Answer:
    started = time.perf_counter()
    connection.request("POST", body.route, body.data, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        raise ServerError(f"HTTP {reply.status}: {reply.read(500).decode(errors='replace')}")
    first_s: float | None = None
    usage: dict[str, Any] | None = None
    for line in reply:
        if not line.startswith(_EVENT):
            continue
        if first_s is None:
            first_s = time.perf_counter()
        event = line.removeprefix(_EVENT).strip()
        if event != _DONE and b'"usage":{' in event.replace(b" ", b""):
            usage = json.loads(event)["usage"] or usage
    ended_s = time.perf_counter()
    if first_s is None or usage is None:
        raise ServerError("the answer broke off: it has no event with its usage")
    prompt = int(usage["prompt_tokens"])
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        ttft_ms=1e3 * (first_s - started),
        e2e_ms=1e3 * (ended_s - started),
        prompt_tokens=prompt,
        computed_tokens=prompt - int(details.get("cached_tokens") or 0),
    )
