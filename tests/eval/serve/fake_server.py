# SPDX-License-Identifier: Apache-2.0
"""A slow server that says what it is told: for the arithmetic of the harness, nothing else.

The first line of the user's message is JSON: seconds before the first piece (`first_s`) and
between pieces (`gap_s`), the pieces, the usage, and how it goes wrong (`fault`).
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import AbstractContextManager
from typing import Any

from tests.helpers.ends import SLOWEST_S
from tests.helpers.fake_http import Exchange, start_fake_http


def _usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def say(prompt: int = 10, cached: int = 0, **told: Any) -> str:
    """The message that has the server answer so."""
    pieces = told.get("pieces", ["a", "b"])
    return json.dumps({"usage": _usage(prompt, len(pieces), cached), **told})


def fake_server() -> AbstractContextManager[tuple[str, list[dict[str, Any]]]]:
    """Gives its URL, and the bodies of the requests it got."""
    arrived = threading.Condition()

    def answer(exchange: Exchange) -> None:
        is_chat = exchange.path.endswith("/chat/completions")
        body = exchange.body
        told = json.loads(
            (body["messages"][-1]["content"] if is_chat else body["prompt"]).splitlines()[0]
        )
        if told.get("fault") == "refused":
            exchange.send_json(400, {"error": {"message": "no"}})
            return
        with exchange.events() as send:
            with arrived:
                arrived.notify_all()
                arrived.wait_for(lambda: len(exchange.bodies) >= told.get("together", 0), SLOWEST_S)
            for event in _events(told, is_chat):
                send(event)

    return start_fake_http(answer)


def _events(told: dict[str, Any], is_chat: bool) -> Any:
    """The documents of the stream, each when its time has come."""
    fault = told.get("fault")
    time.sleep(told.get("first_s", 0.0))
    pieces = told.get("pieces", ["a", "b"])
    for i, piece in enumerate(pieces):
        if i:
            time.sleep(told.get("gap_s", 0.0))
        if fault == "dropped" and i == 1:
            raise ConnectionError("told to")
        yield _event(is_chat, [_choice(is_chat, piece, None)])
    if fault != "unfinished":
        more = {"metadata": told["metadata"]} if told.get("metadata") else {}
        yield _event(is_chat, [_choice(is_chat, "", "stop")], **more)
    if fault != "no usage":
        yield _event(is_chat, [], usage=told.get("usage", _usage(10, len(pieces), 0)))


def _choice(is_chat: bool, text: str, reason: str | None) -> dict[str, Any]:
    said = {"delta": {"content": text}} if is_chat else {"text": text}
    return {"index": 0, "finish_reason": reason, **said}


def _event(is_chat: bool, choices: list[Any], **more: Any) -> dict[str, Any]:
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    return {"id": "1", "object": kind, "created": 0, "model": "m", "choices": choices, **more}
