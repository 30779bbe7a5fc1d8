# SPDX-License-Identifier: Apache-2.0
"""The picker over HTTP, for clients and gateways.

POST /pick     a request as it would go to a server, or {"roots": [keys], "shared": [keys]}
               -> {"server": URL, "held": tokens}
GET  /servers  what is known of each
GET  /health   200 while some server is alive

Whoever asks can ask for any tenant. So the first two may need a key: even which server is named
tells whether a tenant's entities are held.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from depcache.errors import shorten
from depcache.picker.choice import Picker
from depcache.picker.listener import Listener
from depcache.prompt.roots import MAX_ROOTS, of_tenant, shared_keys, tenant_of

MAX_BYTES = 16 * 2**20
"""Longest body; a server reads no longer one of the questions that it is asked."""

MAX_SHORT = 64 * 2**10
"""Bytes of a body that is read on the event loop; a longer one goes to a thread."""


Answer = Callable[[Request], Awaitable[JSONResponse]]


def make_app(
    listeners: Sequence[Listener],
    picker: Picker,
    public_salt: str | None = None,
    *,
    key: str | None = None,
) -> Starlette:
    """The application. It starts the listeners, and closes them when it ends.

    public_salt  the servers' setting: what they hold of it counts for every tenant
    key          what a request must bring as its bearer token, but for /health; None: nothing
    """

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
                roots, public = _read_roots(content, public_salt)
            else:
                roots, public = await run_in_threadpool(_read_roots, content, public_salt)
        except (ValueError, RecursionError) as error:
            return _error(400, str(error))
        choice = picker.pick(roots, public)
        if choice is None:
            return _error(503, "no server is alive: GET /servers says why")
        return JSONResponse({"server": choice.url, "held": choice.held})

    async def servers(request: Request) -> JSONResponse:
        return JSONResponse([each.describe() for each in listeners])

    async def health(request: Request) -> JSONResponse:
        is_alive = any(each.is_alive for each in listeners)
        return JSONResponse({"alive": is_alive}, 200 if is_alive else 503)

    routes = [
        Route("/pick", _for_holders(key, pick), methods=["POST"]),
        Route("/servers", _for_holders(key, servers)),
        Route("/health", health),
    ]
    return Starlette(routes=routes, lifespan=listening)


def _for_holders(key: str | None, answer: Answer) -> Answer:
    """`answer`, for who brings the key, if there is one; HTTP 401 for everybody else."""
    if key is None:
        return answer
    expected = key.encode()

    async def check(request: Request) -> JSONResponse:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(given.encode(), expected):
            return _error(401, "the picker needs its key: send Authorization: Bearer KEY")
        return await answer(request)

    return check


def _read_roots(content: bytearray, public_salt: str | None) -> tuple[list[str], list[str]]:
    """What the asker's roots are called, and what the same are called that are public."""
    body = json.loads(content)
    if isinstance(body, dict) and "roots" in body:
        roots, shared = _read_keys(body, "roots"), _read_keys(body, "shared")
        if shared and len(shared) != len(roots):
            raise ValueError(
                f"shared has {len(shared)} keys for {len(roots)} roots: send one for each, or none"
            )
    else:
        known, tenant = shared_keys(body)
        roots, shared = of_tenant(known, tenant), list(known)
    if public_salt is None:
        return roots, []
    return roots, of_tenant(shared, tenant_of(public_salt, None))


def _read_keys(body: dict[str, Any], name: str) -> list[str]:
    """A list of keys, each once."""
    keys = body.get(name, [])
    if not isinstance(keys, list) or not all(isinstance(each, str) for each in keys):
        raise ValueError(f"{name} is {shorten(keys)}: send a list of keys")
    return list(dict.fromkeys(keys))[:MAX_ROOTS]


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "code": status}}, status)
