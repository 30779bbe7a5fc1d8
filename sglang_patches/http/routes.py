# SPDX-License-Identifier: Apache-2.0
"""The routes under /depcache: on SGLang's own app, with its authentication.

Routes are put on the app itself: `include_router` would hide them from SGLang's check of
admin rights (SGLang 0.5.17 with FastAPI 0.163).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Literal

import fastapi
import numpy as np
from fastapi.responses import JSONResponse, PlainTextResponse

import depcache
from depcache.config import Config
from depcache.errors import PromptError, shorten
from depcache.prompt.unread import find_unread
from depcache.prompt.wire import forest_from_wire
from sglang_patches.http.ask import ask
from sglang_patches.http.asked_prompt import AskedPrompt, read_asked_prompt
from sglang_patches.http.load_routes import guard_load_routes
from sglang_patches.http.prompt_table import describe_prompt
from sglang_patches.http.rejections import num_rejected, trial
from sglang_patches.http.table_routes import add_table_routes
from sglang_patches.http.ui import add_ui_routes
from sglang_patches.observe.stats import add_text, to_dot
from sglang_patches.requests.beginnings import entities_are_beginnings
from sglang_patches.verify import inspect
from sglang_patches.version import installed_version

MAX_TREE_NODES = 10_000  # the scheduler lists them, and serves nobody meanwhile
MAX_TIMEOUT_S = 3600.0


def add_routes(http_server: Any, config: Config) -> None:
    """Add the routes to SGLang's HTTP server module. Safe to call twice.

    config  of this server; the status route tells it
    """
    from sglang.srt.utils.auth import AuthLevel, auth_level

    app = http_server.app
    if any(getattr(route, "path", "").startswith("/depcache/") for route in app.routes):
        return

    # What all tenants hold together, and how often it was of use, tells one of the others.
    counts = auth_level(AuthLevel.ADMIN_FORCE if config.private_counts else AuthLevel.NORMAL)
    admin = auth_level(AuthLevel.ADMIN_FORCE if config.private_counts else AuthLevel.ADMIN_OPTIONAL)

    @app.get("/depcache/status")
    @counts
    async def depcache_status() -> dict[str, Any]:
        """What is installed and in place, and what the cache holds."""
        return await get_status(http_server, config)

    @app.post("/depcache/explain", response_model=None)
    async def depcache_explain(request: fastapi.Request) -> dict[str, Any] | JSONResponse:
        """Segments and plan of a request, without running it."""
        try:
            with trial():
                return await explain(http_server, await read_asked_prompt(http_server, request))
        except ValueError as error:
            return _bad_request(str(error))

    @app.post("/depcache/prefetch", response_model=None)
    async def depcache_prefetch(request: fastapi.Request) -> dict[str, Any] | JSONResponse:
        """Bring the context of a request from disk to host memory, without running it."""
        return await _answer_about_prompt({"ask": "prefetch"}, request)

    @app.post("/depcache/invalidate", response_model=None)
    @admin
    async def depcache_invalidate(request: fastapi.Request) -> dict[str, Any] | JSONResponse:
        """Give up, in every tier, all KV of what begins with one of a request's paths."""
        ends_only = request.query_params.get("ends_only", "false")
        if ends_only not in ("true", "false"):
            return _bad_request(f"ends_only is {shorten(ends_only)}: send true or false")
        with entities_are_beginnings():
            told = {"ask": "invalidate", "ends_only": ends_only == "true"}
            return await _answer_about_prompt(told, request)

    @app.post("/depcache/persist", response_model=None)
    @admin
    async def depcache_persist() -> dict[str, Any] | JSONResponse:
        """Write to disk what is only on the device or in host memory; returns at once."""
        try:
            return (await _ask(http_server, {"ask": "persist"}))["reply"]
        except PromptError as error:
            return _bad_request(str(error))

    async def _answer_about_prompt(
        told: dict[str, Any], request: fastapi.Request
    ) -> dict[str, Any] | JSONResponse:
        try:
            with trial():
                prompt = await read_asked_prompt(http_server, request)
                return (await _ask(http_server, {**told, **prompt.question}))["reply"]
        except ValueError as error:
            return _bad_request(str(error))

    @app.get("/depcache/stats")
    @counts
    async def depcache_stats() -> dict[str, Any]:
        """What each tier holds and how often it was of use."""
        stats = (await _ask(http_server, {"ask": "stats"}))["reply"]
        stats["requests"]["rejected_requests"] += num_rejected()
        return stats

    @app.get("/depcache/roots", response_model=None)
    @admin
    async def depcache_roots() -> dict[str, Any] | JSONResponse:
        """The roots that are held, tokens by key, up to the last event; see root events."""
        try:
            return (await _ask(http_server, {"ask": "roots"}))["reply"]
        except PromptError as error:
            return _bad_request(str(error))

    # The tree tells tenants' salts, and a flush costs everyone: for the admin, if there is one.
    @app.get("/depcache/tree", response_model=None)
    @admin
    async def depcache_tree(
        limit: int = fastapi.Query(1000, ge=0, le=MAX_TREE_NODES),
        style: Literal["json", "dot"] = fastapi.Query("json", alias="format"),
    ) -> dict[str, Any] | PlainTextResponse:
        """The nodes of the tree, as JSON or for Graphviz."""
        dump = (await _ask(http_server, {"ask": "tree", "limit": limit}))["reply"]
        tokenizer = http_server._global_state.tokenizer_manager.tokenizer
        await asyncio.to_thread(add_text, dump, tokenizer)
        return PlainTextResponse(to_dot(dump)) if style == "dot" else dump

    @app.post("/depcache/flush", response_model=None)
    @admin
    async def depcache_flush(
        keep_disk: bool = False,
        timeout: float = fastapi.Query(1.0, ge=0.0, le=MAX_TIMEOUT_S, allow_inf_nan=False),
    ) -> dict[str, Any] | JSONResponse:
        """Forget everything in every tier, as SGLang's /flush_cache; not while requests run.

        keep_disk  what is on disk stays, and is found again as after a restart
        timeout    seconds to wait for running requests; 0 is too short even for one whose answer
                   has arrived: SGLang sends it before it counts the request as ended
        """
        if keep_disk:
            await _ask(http_server, {"ask": "keep_disk", "keep": True})
        result = await http_server._global_state.tokenizer_manager.flush_cache(timeout_s=timeout)
        if not result.success:
            # Else the next flush, whoever asks for it, would leave the disk as it is.
            await _ask(http_server, {"ask": "keep_disk", "keep": False})
            return _bad_request(result.message or "requests are running: flush when there are none")
        return {"success": True}

    if config.private_counts:
        guard_load_routes(http_server, admin)
    add_table_routes(app, admin, _bad_request)
    add_ui_routes(http_server, admin, partial(_ask, http_server))
    app.openapi_schema = None


def _bad_request(message: str) -> JSONResponse:
    body = {"object": "error", "message": message, "type": "BadRequestError", "param": None}
    return JSONResponse({**body, "code": 400}, status_code=400)


async def _ask(http_server: Any, question: dict[str, Any] | None) -> dict[str, Any]:
    """The scheduler's answer; of several data-parallel ranks the first one's."""
    return await ask(http_server._global_state.tokenizer_manager, question)


async def get_status(http_server: Any, config: Config) -> dict[str, Any]:
    """The body of GET /depcache/status."""
    from sglang_patches.hooks import ENGINE_HOOKS, front_hook_names

    report = inspect(ENGINE_HOOKS + front_hook_names())
    state = await _ask(http_server, None)
    server_args = http_server._global_state.tokenizer_manager.server_args
    return {
        "version": depcache.__version__,
        "sglang_version": installed_version(),
        "active": True,
        "attention_backend": server_args.attention_backend,
        "attention_plan": config.attention_plan,
        "seams": report.seams,
        "hooks": report.hooks,
        "problems": report.problems,
        "cache": state["cache"],
        "config": config.model_dump(),
    }


async def explain(http_server: Any, prompt: AskedPrompt) -> dict[str, Any]:
    """The body of POST /depcache/explain. Raises PromptError on a bad request."""
    reply = (await _ask(http_server, {"ask": "explain", **prompt.question}))["reply"]
    tokenizer = http_server._global_state.tokenizer_manager.tokenizer
    return await asyncio.to_thread(_explain, prompt, reply, tokenizer)


def _explain(prompt: AskedPrompt, reply: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    input_ids, wire = prompt.input_ids, prompt.wire
    forest = forest_from_wire(input_ids, wire)
    sources = np.array(reply.pop("sources_by_segment"), np.int64).reshape(-1, 4)
    around = [input_ids[: forest.system_len], input_ids[forest.task_start :]]
    unread = find_unread(tokenizer.batch_decode(around))
    return {
        "layout": wire.layout,
        "prompt_tokens": forest.num_tokens,
        "context_tokens": forest.task_start,
        "trees": forest.num_trees,
        "segments": forest.num_segments,
        **reply,
        "plain": forest.task_len,
        "fallback_reason": None,
        "differs": prompt.differs,
        "unread_facts": [each._asdict() for each in unread],
        **describe_prompt(input_ids, forest, wire.layout, sources, tokenizer),
    }
