# SPDX-License-Identifier: Apache-2.0
"""SGLang's own routes about load, for the admin alone where counts are private.

They tell how many tokens the last requests found in the cache and how many were computed, whoever
asked: `cache_hit_rate`, `total_prefill_uncached_tokens`, `num_waiting_uncached_tokens`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def guard_load_routes(http_server: Any, admin: Callable[[Any], Any]) -> None:
    """Put the routes a second time on the app of SGLang's HTTP server module, before its own.

    admin  marks a route as the admin's

    A mark on SGLang's own would do nothing: it includes a router, whose routes are hidden from its
    check of rights (SGLang 0.5.23 with FastAPI 0.163).
    """
    from sglang.srt.entrypoints import v1_loads

    found = {"/v1/loads": v1_loads.get_loads}
    if hasattr(http_server, "get_load"):  # 0.5.17
        found["/get_load"] = http_server.get_load
    routes = http_server.app.router.routes
    for path, endpoint in found.items():
        http_server.app.add_api_route(path, admin(_copy_of(endpoint)), include_in_schema=False)
        routes.insert(0, routes.pop())


def _copy_of(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The same under another identity, so that a mark on it is not one on SGLang's own."""

    @wraps(endpoint)
    async def copy(*args: Any, **kwargs: Any) -> Any:
        return await endpoint(*args, **kwargs)

    return copy
