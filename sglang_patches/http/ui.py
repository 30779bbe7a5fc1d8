# SPDX-License-Identifier: Apache-2.0
"""The page /depcache/ui: its files, and the one route that tells it of the last prompts.

The files hold no secret, so that a browser can fetch them before it has a key. What shows prompts
is for the admin, if there is one. Everything comes from this server: no build, no CDN, no font.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

import fastapi
from fastapi.responses import JSONResponse, Response

from sglang_patches.http.watched import KEPT_S, WATCHED

FOLDER = Path(__file__).parent / "page"
MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'",
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Ask = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def add_ui_routes(http_server: Any, admin: Callable[[Any], Any], ask: Ask) -> None:
    """Add the page to SGLang's HTTP server module.

    admin  marks a route as the admin's
    ask    puts a question to the scheduler
    """
    app = http_server.app

    @app.get("/depcache/ui", include_in_schema=False)
    async def depcache_ui() -> Response:
        """The page."""
        return _file("index.html")

    @app.get("/depcache/ui/{name}", include_in_schema=False)
    async def depcache_ui_file(name: str) -> Response:
        """What the page is made of."""
        return _file(name)

    @app.post("/depcache/ui/watch", response_model=None)
    @admin
    async def depcache_ui_watch(
        request: fastapi.Request, after: int = fastapi.Query(0, ge=0)
    ) -> dict[str, Any] | JSONResponse:
        """The last prompts behind number `after`. To ask is to watch; see `watched`."""
        if _is_from_elsewhere(request):
            return _refusal()
        told = (await ask({"ask": "watch", "seconds": KEPT_S}))["reply"]
        session = WATCHED.keep_on(told["capacity_tokens"])
        tokenizer = http_server._global_state.tokenizer_manager.tokenizer
        return await asyncio.to_thread(session.read, session.take(), after, tokenizer)

    @app.post("/depcache/ui/forget", response_model=None)
    @admin
    async def depcache_ui_forget(request: fastapi.Request) -> dict[str, Any] | JSONResponse:
        """End the watch at once; nothing of the last prompts is left."""
        if _is_from_elsewhere(request):
            return _refusal()
        await ask({"ask": "watch", "seconds": 0})
        WATCHED.forget()
        return {"success": True}


def _file(name: str) -> Response:
    files = _files()
    if name not in files:
        raise fastapi.HTTPException(404, f"the page has no file {name!r:.100}")
    data, media_type = files[name]
    return Response(data, headers=HEADERS, media_type=media_type)


@cache
def _files() -> dict[str, tuple[bytes, str]]:
    """Name -> (bytes, media type). Read once: no name of a request ever becomes a path."""
    return {
        path.name: (path.read_bytes(), MEDIA_TYPES[path.suffix])
        for path in FOLDER.iterdir()
        if path.suffix in MEDIA_TYPES
    }


def _is_from_elsewhere(request: fastapi.Request) -> bool:
    """Whether a browser says that another site's page asks: SGLang lets those read answers."""
    return request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")


def _refusal() -> JSONResponse:
    message = "this route answers its own page only: open /depcache/ui on this server"
    return JSONResponse({"object": "error", "message": message, "code": 403}, status_code=403)
