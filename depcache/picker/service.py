# SPDX-License-Identifier: Apache-2.0
"""The picker over HTTP, for clients and gateways.

POST /pick     a request as it would go to a server, or {"roots": [keys]}
               -> {"server": URL, "held": tokens}
GET  /servers  what is known of each
GET  /health   200 while some server is alive
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from depcache.errors import shorten
from depcache.picker.choice import Picker
from depcache.picker.listener import Listener
from depcache.prompt.roots import MAX_ROOTS, root_keys

MAX_BYTES = 16 * 2**20
"""Longest body; a server reads no longer one of the questions that it is asked."""

MAX_SHORT = 64 * 2**10
"""Bytes of a body that is read on the event loop; a longer one goes to a thread."""


def make_app(listeners: Sequence[Listener], picker: Picker) -> Starlette:
    """The application. It starts the listeners, and closes them when it ends."""

    @asynccontextmanager
    async def listening(app: Starlette) -> AsyncIterator[None]:
        for each in listeners:
            each.start()
        yield
        for each in listeners:
            each.close()

    async def pick(request: Request) -> JSONResponse:
        content = bytearray()
        async for piece in request.stream():
            content += piece
            if len(content) > MAX_BYTES:
                return _error(413, f"the body is longer than {MAX_BYTES} bytes: send its roots")
        try:
            if len(content) <= MAX_SHORT:
                roots = _read_roots(content)
            else:
                roots = await run_in_threadpool(_read_roots, content)
        except (ValueError, RecursionError) as error:
            return _error(400, str(error))
        choice = picker.pick(roots)
        if choice is None:
            return _error(503, "no server is alive: GET /servers says why")
        return JSONResponse({"server": choice.url, "held": choice.held})

    async def servers(request: Request) -> JSONResponse:
        return JSONResponse([each.describe() for each in listeners])

    async def health(request: Request) -> JSONResponse:
        is_alive = any(each.is_alive for each in listeners)
        return JSONResponse({"alive": is_alive}, 200 if is_alive else 503)

    routes = [
        Route("/pick", pick, methods=["POST"]),
        Route("/servers", servers),
        Route("/health", health),
    ]
    return Starlette(routes=routes, lifespan=listening)


def _read_roots(content: bytearray) -> list[str]:
    body = json.loads(content)
    if isinstance(body, dict) and "roots" in body:
        roots = body["roots"]
        if not isinstance(roots, list) or not all(isinstance(each, str) for each in roots):
            raise ValueError(f"roots is {shorten(roots)}: send a list of keys")
        return roots[:MAX_ROOTS]
    return list(root_keys(body))


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "code": status}}, status)
