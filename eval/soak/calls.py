# SPDX-License-Identifier: Apache-2.0
"""One HTTP request of a soak: its answer is counted, its first chunk timed, a 5xx is a fault."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import httpx

from eval.soak.judge import Answer
from eval.soak.ledger import Ledger
from eval.soak.server import Endpoint

ANSWER_S = 120.0
"""What takes longer is a fault: nothing here is that large."""

CUT_OFF = "cut off with the server"

_HEADERS = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Reply:
    """sent_s, received_s  on the clock of `time.monotonic`"""

    status: int
    text: str
    sent_s: float
    received_s: float

    @property
    def is_ok(self) -> bool:
        return self.status == 200


class Caller:
    """Sends requests to one server, whichever life it is in."""

    def __init__(self, server: Endpoint, ledger: Ledger) -> None:
        self.server = server
        self.ledger = ledger
        # A server closes the connection behind a 500: who used it again at once would be reset.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(timeout=ANSWER_S, limits=limits)

    async def close(self) -> None:
        await self._http.aclose()

    async def send(
        self,
        kind: str,
        method: str,
        route: str,
        body: Any = None,
        *,
        content: str | None = None,
    ) -> Reply | None:
        """The answer; None if there was none, which is a fault unless the server was ended.

        content  the body as it is, instead of `body` as JSON
        """
        if content is None and body is not None:
            content = json.dumps(body)
        request = {"method": method, "route": route, "body": content}
        sent = time.monotonic()
        try:
            with self.ledger.under_way(request):
                status, text = await self._send(method, route, content)
        except httpx.HTTPError as error:
            self.note_silence(kind, error, request)
            return None
        self.ledger.note_answer(kind, status, text)
        reply = Reply(status, text, sent, time.monotonic())
        if status >= 500 and not self.server.is_ending:
            await self._note_failure(kind, reply, request)
        return reply

    async def _send(self, method: str, route: str, content: str | None) -> tuple[int, str]:
        url = self.server.url + route
        sent = time.monotonic()
        async with self._http.stream(method, url, content=content, headers=_HEADERS) as response:
            parts = []
            is_stream = "event-stream" in response.headers.get("content-type", "")
            async for part in response.aiter_text():
                if is_stream and not parts:
                    self.ledger.ttft_ms.append((sent, (time.monotonic() - sent) * 1e3))
                parts.append(part)
            return response.status_code, "".join(parts)

    def note_silence(self, kind: str, error: Exception, request: Mapping[str, Any]) -> None:
        """A request without an answer. That of a dead server is its death's, and noted there."""
        if self.server.is_ending or not self.server.is_running:
            self.ledger.seen[CUT_OFF] += 1
            return
        self.ledger.fault("no answer", f"{kind}: {error!r}", request)

    async def _note_failure(self, kind: str, reply: Reply, request: dict[str, Any]) -> None:
        """A 5xx. Is it ours? Not if the same without dependency data gets one as well."""
        what = f"{kind}: HTTP {reply.status} {reply.text[:500]}"
        plain = without_dependencies(request["route"], request["body"])
        if plain is not None and reply.status == 500:
            try:
                status, _ = await self._send(request["method"], request["route"], plain)
            except httpx.HTTPError:
                status = 0
            if status >= 500:
                self.ledger.stock.append({"what": what, "request": request | {"body": plain}})
                return
        self.ledger.fault("5xx", what, request)


def without_dependencies(route: str, content: str | None) -> str | None:
    """The body of one of SGLang's routes without its `custom_params`; None if there is no such."""
    if content is None or route.startswith("/depcache/"):
        return None
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    inner = body.get("sampling_params")
    holder = inner if isinstance(inner, dict) and "custom_params" in inner else body
    return None if holder.pop("custom_params", None) is None else json.dumps(body)


def read_generated(text: str, *, is_stream: bool) -> list[dict[str, Any]]:
    """The answers of /generate, one per choice. ValueError for a stream that breaks off."""
    if not is_stream:
        return _answers_in(text)
    # Not splitlines: the text of an answer may hold U+2028.
    events = [line.removeprefix("data: ") for line in text.split("\n") if line]
    if not events or events.pop() != "[DONE]":
        raise ValueError("the stream has no end")
    last: dict[int, dict[str, Any]] = {}
    for answer in chain.from_iterable(map(_answers_in, events)):
        last[answer.get("index", 0)] = answer
    return list(last.values())


def _answers_in(text: str) -> list[dict[str, Any]]:
    body = json.loads(text)
    answers = body if isinstance(body, list) else [body]
    if any("meta_info" not in answer for answer in answers):
        raise ValueError(f"an answer without meta_info: {text[:300]}")
    return answers


def answer_of_generate(result: Mapping[str, Any], num_asked: int) -> Answer:
    """The answer for the judge, with the log-probabilities of the likeliest tokens."""
    meta = result["meta_info"]
    rows = zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True)
    return Answer(
        list(result["output_ids"]),
        [[(one[0], one[1]) for one in [chosen, *top]] for chosen, top in rows],
        num_asked,
        meta["num_retractions"],
    )


def answer_of_choice(choice: Mapping[str, Any], num_asked: int) -> Answer:
    """The answer for the judge, from a choice of a chat or completion with its token ids."""
    said = choice["logprobs"]
    if "content" in said:
        logprobs = [row["logprob"] for row in said["content"]]
    else:
        logprobs = said["token_logprobs"]
    # SGLang 0.5.23 has another name for those of a chat.
    tokens = list(choice["response_token_ids" if "response_token_ids" in choice else "token_ids"])
    lost = len(tokens) - len(logprobs)
    rows = [[(p, token)] for p, token in zip(logprobs, tokens[max(lost, 0) :], strict=True)]
    # These routes do not say whether the request was retracted.
    return Answer(tokens, rows, num_asked, max(0, min(lost, 1)))
