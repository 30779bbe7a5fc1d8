# SPDX-License-Identifier: Apache-2.0
"""The route of the catalog of tables: what it holds, and another one in its place.

Both are for the admin, if there is one: what users may see of a schema is not all of it, and a
catalog decides what the tables of everybody's prompts see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import fastapi
from fastapi.responses import JSONResponse

from depcache.errors import DepCacheError, PromptError
from sglang_patches.http.asked_prompt import read_body
from sglang_patches.requests.catalog import CATALOG


def add_table_routes(
    app: Any, admin: Callable[[Any], Any], refuse: Callable[[str], JSONResponse]
) -> None:
    """Add the route to an app.

    admin   marks a route as the admin's
    refuse  makes the answer to a bad request of one sentence
    """

    @app.get("/depcache/tables")
    @admin
    async def depcache_tables() -> dict[str, Any]:
        """The tables that are found in plain prompts."""
        return CATALOG.describe()

    @app.post("/depcache/tables", response_model=None)
    @admin
    async def depcache_replace_tables(request: fastapi.Request) -> dict[str, Any] | JSONResponse:
        """Find the tables of another catalog, the lines of a file of `depcache tables load`.

        In memory only: a restart reads the file of the settings again. What is cached stays valid.
        """
        try:
            # On a thread: a large catalog takes a while, and the event loop serves everybody.
            await asyncio.to_thread(_replace, await read_body(request))
        except DepCacheError as error:
            return refuse(str(error))
        return CATALOG.describe()


def _replace(data: bytes) -> None:
    from depcache.tables.catalog import Catalog  # brings networkx

    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PromptError(
            f"the body is no UTF-8 ({error.reason}): send a catalog as it is"
        ) from None
    CATALOG.replace(Catalog.parse(text, "the body"))
