# SPDX-License-Identifier: Apache-2.0
"""A local HTTP server with OpenAI's chat route, whose "model" is a function of the last message."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, str] | tuple[int, str, str]
"""HTTP status, the content of the answer or the text of the error, and the `finish_reason`."""


@contextmanager
def start_chat_server(
    answer: Callable[[dict[str, Any]], Answer], *, stream: bytes = b""
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of the server, and the bodies it has been sent so far.

    stream  events that answer every request for a stream
    """
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            if body.get("stream"):
                self._send(200, "text/event-stream", stream)
                return
            status, text, *reason = answer(body)
            if self.path != "/v1/chat/completions":
                status, text = 404, "no such route"
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": (reason or ["stop"])[0]}
            good = {"object": "chat.completion", "choices": [choice]}
            data = json.dumps(good if status == 200 else {"error": text}).encode()
            self._send(status, "application/json", data)

        def _send(self, status: int, kind: str, data: bytes) -> None:
            self.send_response(status)
            if status in (429, 503):
                self.send_header("Retry-After", "0")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
