# SPDX-License-Identifier: Apache-2.0
"""A local HTTP server with OpenAI's chat route, whose "model" is a function of the last message."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tests.helpers.fake_http import Exchange, start_fake_http

Answer = tuple[int, str] | tuple[int, str, str]
"""HTTP status, the content of the answer or the text of the error, and the `finish_reason`."""


def start_chat_server(
    answer: Callable[[dict[str, Any]], Answer], *, stream: bytes = b""
) -> AbstractContextManager[tuple[str, list[dict[str, Any]]]]:
    """Gives the address of the server, and the bodies it has been sent so far.

    stream  events that answer every request for a stream
    """

    def reply(exchange: Exchange) -> None:
        if exchange.body.get("stream"):
            exchange.send(200, "text/event-stream", stream)
            return
        status, text, *reason = answer(exchange.body)
        if exchange.path != "/v1/chat/completions":
            status, text = 404, "no such route"
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": (reason or ["stop"])[0]}
        good = {"object": "chat.completion", "choices": [choice]}
        exchange.send_json(status, good if status == 200 else {"error": text})

    return start_fake_http(reply)
