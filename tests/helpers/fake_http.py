# SPDX-License-Identifier: Apache-2.0
"""An HTTP server on this machine that a test answers for, request by request."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Exchange(BaseHTTPRequestHandler):
    """One POST, and the ways to answer it.

    path    of the request
    body    its JSON
    bodies  of all requests to this server so far, this one included
    """

    protocol_version = "HTTP/1.1"
    server: Any
    body: dict[str, Any]

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return self.server.bodies

    def do_POST(self) -> None:
        self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(self.body)
        self.server.answer(self)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def send(self, status: int, kind: str, data: bytes) -> None:
        """Answer with `data`; a client that may try again need not wait."""
        self.send_response(status)
        if status in (429, 503):
            self.send_header("Retry-After", "0")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def send_json(self, status: int, document: Any) -> None:
        """Answer with a document."""
        self.send(status, "application/json", json.dumps(document).encode())

    @contextmanager
    def events(self) -> Iterator[Callable[[Any], None]]:
        """Answer piece by piece; gives what sends the next document. The stream ends with [DONE].

        A block that ends by ConnectionError drops the connection instead.
        """
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            yield lambda document: self._chunk(f"data: {json.dumps(document)}\n\n".encode())
        except ConnectionError:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


@contextmanager
def start_fake_http(
    answer: Callable[[Exchange], None],
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Gives the address of the server, and the bodies it has been sent so far.

    answer  is called on a thread of each connection
    """
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Exchange)
    server.answer, server.bodies = answer, []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
