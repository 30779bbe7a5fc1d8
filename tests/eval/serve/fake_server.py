# SPDX-License-Identifier: Apache-2.0
"""A slow server that says what it is told: for the arithmetic of the harness, nothing else.

The first line of the user's message is JSON: seconds before the first piece (`first_s`) and
between pieces (`gap_s`), the pieces, the usage, and how it goes wrong (`fault`).
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.helpers.ends import SLOWEST_S


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        is_chat = self.path.endswith("/chat/completions")
        text = body["messages"][-1]["content"] if is_chat else body["prompt"]
        told = json.loads(text.splitlines()[0])
        fault = told.get("fault")
        if fault == "refused":
            self._send(json.dumps({"error": {"message": "no"}}).encode(), 400)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with self.server.arrived:
            together = told.get("together", 0)
            self.server.arrived.notify_all()
            self.server.arrived.wait_for(lambda: len(self.server.bodies) >= together, SLOWEST_S)
        time.sleep(told.get("first_s", 0.0))
        pieces = told.get("pieces", ["a", "b"])
        for i, piece in enumerate(pieces):
            if i:
                time.sleep(told.get("gap_s", 0.0))
            if fault == "dropped" and i == 1:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self._event(is_chat, [self._choice(is_chat, piece, None)])
        if fault != "unfinished":
            self._event(is_chat, [self._choice(is_chat, "", "stop")], told.get("metadata"))
        if fault != "no usage":
            self._event(is_chat, [], usage=told.get("usage", _usage(10, len(pieces), 0)))
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def log_message(self, *args: Any) -> None:
        pass

    def _choice(self, is_chat: bool, text: str, reason: str | None) -> dict[str, Any]:
        said = {"delta": {"content": text}} if is_chat else {"text": text}
        return {"index": 0, "finish_reason": reason, **said}

    def _event(self, is_chat: bool, choices: list[Any], metadata: Any = None, **more: Any) -> None:
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        event = {"id": "1", "object": kind, "created": 0, "model": "m", "choices": choices, **more}
        if metadata:
            event["metadata"] = metadata
        self._chunk(f"data: {json.dumps(event)}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _send(self, data: bytes, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


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


@contextmanager
def fake_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Its URL, and the bodies of the requests it got."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.bodies = []
    server.arrived = threading.Condition()
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.bodies
    finally:
        server.shutdown()
        server.server_close()
