# SPDX-License-Identifier: Apache-2.0
"""An httpx transport that turns the requests of any OpenAI SDK into dependency prompts.

    client = OpenAI(base_url="http://127.0.0.1:30000/v1", http_client=depcache.httpx_client())

The same argument gives it to LlamaIndex (`OpenAILike(http_client=...)`), LangChain
(`ChatOpenAI(http_client=...)`) and neo4j-graphrag (`OpenAILLM(http_client=...)`). Only the JSON
bodies of POSTs to `/chat/completions` and `/completions` are touched, and only when they hold
facts in a spelling that is recognised, or tables where they are to be looked for. What looks like
facts and is not is said in the log, once for each client.
Replies pass unchanged; what was reused is in their `metadata["depcache"]`. Requests with
dependency data have a routing key (`depcache.client.routing`) for a router before several servers.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypedDict

import anyio.to_thread
import httpx

from depcache.client.context import current_context
from depcache.client.notice import UnreadNotice
from depcache.client.rewrite import rewrite_body
from depcache.client.routing import HEADER, Routing
from depcache.errors import ConfigError
from depcache.prompt.layout_names import Layout, read_layout
from depcache.prompt.recompute import Recompute

if TYPE_CHECKING:
    from depcache.tables.prompt_tables import PromptTables, TablesToFind
    from depcache.tables.seen import Sees

_ROUTES = ("/chat/completions", "/completions")
_TRANSPORT_OPTIONS = ("verify", "cert", "http1", "http2", "limits", "proxy", "trust_env")

_logger = logging.getLogger("depcache.client")


class _Ours(TypedDict):
    """What is ours of the options of a client."""

    layout: Layout
    auto: bool
    merge: bool
    tables: TablesToFind | None
    sees: Sees
    picker: str | None
    recompute: float | Recompute | None


class _Rewriter:
    """What both transports do to a request before it goes out."""

    def __init__(
        self,
        layout: Layout,
        auto: bool,
        merge: bool,
        tables: TablesToFind | None,
        sees: Sees,
        picker: str | None,
        recompute: float | Recompute | None,
    ) -> None:
        self._layout: Layout = read_layout(layout)
        self._recompute = None if recompute is None else Recompute.read(recompute)
        Recompute.layout(self._layout, self._recompute)
        if merge and recompute is not None:
            raise ConfigError(
                "merge is for models that were trained for merged trees, and recompute for models "
                "as they come: leave out one of them"
            )
        self._auto = auto
        self._merge = merge
        self._tables = None if tables is None else _find_tables(tables, sees)
        self._routing = Routing(picker)
        self.waits = picker is not None
        self._notice = UnreadNotice(
            "name the paths with depcache.graph_context, or teach the spelling with "
            "depcache.register_recogniser"
        )

    def applies_to(self, request: httpx.Request) -> bool:
        return (
            request.method == "POST"
            and request.url.path.rstrip("/").endswith(_ROUTES)
            and "json" in request.headers.get("content-type", "")
            and "content-encoding" not in request.headers
        )

    def learn(self, request: httpx.Request, response: httpx.Response) -> None:
        """Note which server answered a request, if it is told."""
        if response.is_success:
            self._routing.learn(request.headers, response.headers)

    def rewrite(self, request: httpx.Request) -> httpx.Request:
        """The request to send, with a routing key if it has dependency data; `request` itself,
        whose content has been read, if the body stays."""
        try:
            asked = json.loads(request.content)
            body = rewrite_body(
                asked,
                context=current_context(),
                auto=self._auto,
                layout=self._layout,
                merge=self._merge,
                notice=self._notice,
                tables=self._tables,
                recompute=self._recompute,
            )
            # Escaped, because a body may hold half a surrogate pair, which UTF-8 cannot.
            content = None if body is None else json.dumps(body).encode()
        except (ValueError, RecursionError) as error:
            # No JSON: the server will say so better than we can.
            _logger.debug("the body is left as it is: %s", error)
            return request
        routing = {} if HEADER in request.headers else self._routing.headers_of(body or asked)
        if content is None:
            request.headers.update(routing)
            return request
        # Made by the request's own library: httpx, or httpx2, which has the same classes.
        headers = type(request.headers)(request.headers)
        headers.update(routing)
        headers["content-length"] = str(len(content))
        headers.pop("transfer-encoding", None)
        return type(request)(
            request.method,
            request.url,
            headers=headers,
            content=content,
            extensions=request.extensions,
        )


class DepCacheTransport(httpx.BaseTransport):
    """Rewrites, then hands over to `wrapped`.

    wrapped  the transport that really sends; None makes an `httpx.HTTPTransport`
    layout   position layout for what is found in the text
    auto     look for facts as frameworks write them (see `depcache.recognise`); False leaves only
             what `graph_context` names, and tables
    merge    read lines `A -> rel -> B` alone, two or more in a row, and merge them into trees: a
             shorter prompt, for models that were trained for it
    tables   look for tables first: those of a `depcache.tables.Catalog`, or "ddl" for whatever
             CREATE TABLE declares; a prompt that has some is not searched for facts. Needs the
             extra `tables`. None: do not look
    sees     what a table that is found sees: "nothing", the tables it has "references" to, or its
             "component", always of those in the prompt
    picker   address of a `depcache picker`, where a router stands before several servers;
             http://:KEY@host:port where it has a key
    recompute  of facts: a share, 0 to 1, of their tokens that is computed again with full view
             (the first of each row), or a `Recompute`, for models as they come. Rows then stand
             whole. None: nothing is, as models want it that were trained for it
    """

    def __init__(
        self,
        wrapped: httpx.BaseTransport | None = None,
        *,
        layout: Layout = "tree",
        auto: bool = True,
        merge: bool = False,
        tables: TablesToFind | None = None,
        sees: Sees = "references",
        picker: str | None = None,
        recompute: float | Recompute | None = None,
    ) -> None:
        self._wrapped = wrapped or httpx.HTTPTransport()
        self._rewriter = _Rewriter(layout, auto, merge, tables, sees, picker, recompute)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._rewriter.applies_to(request):
            request.read()
            request = self._rewriter.rewrite(request)
        response = self._wrapped.handle_request(request)
        self._rewriter.learn(request, response)
        return response

    def close(self) -> None:
        self._wrapped.close()


class AsyncDepCacheTransport(httpx.AsyncBaseTransport):
    """The same for `httpx.AsyncClient`."""

    def __init__(
        self,
        wrapped: httpx.AsyncBaseTransport | None = None,
        *,
        layout: Layout = "tree",
        auto: bool = True,
        merge: bool = False,
        tables: TablesToFind | None = None,
        sees: Sees = "references",
        picker: str | None = None,
        recompute: float | Recompute | None = None,
    ) -> None:
        self._wrapped = wrapped or httpx.AsyncHTTPTransport()
        self._rewriter = _Rewriter(layout, auto, merge, tables, sees, picker, recompute)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._rewriter.applies_to(request):
            await request.aread()
            rewrite = partial(self._rewriter.rewrite, request)
            # Who asks a picker waits for it, and the event loop must not.
            request = await anyio.to_thread.run_sync(rewrite) if self._rewriter.waits else rewrite()
        response = await self._wrapped.handle_async_request(request)
        self._rewriter.learn(request, response)
        return response

    async def aclose(self) -> None:
        await self._wrapped.aclose()


def httpx_client(
    *,
    layout: Layout = "tree",
    auto: bool = True,
    merge: bool = False,
    tables: TablesToFind | None = None,
    sees: Sees = "references",
    picker: str | None = None,
    recompute: float | Recompute | None = None,
    **options: Any,
) -> httpx.Client:
    """An `httpx.Client` for the `http_client` argument of the OpenAI SDK and what builds on it.

    layout, auto, merge, tables, sees, picker, recompute  as for `DepCacheTransport`
    options  of `httpx.Client`. Proxies of the environment are not used; pass `proxy=`.
    """
    ours = _Ours(
        layout=layout,
        auto=auto,
        merge=merge,
        tables=tables,
        sees=sees,
        picker=picker,
        recompute=recompute,
    )
    return _make_client(httpx, options, ours)


def async_httpx_client(
    *,
    layout: Layout = "tree",
    auto: bool = True,
    merge: bool = False,
    tables: TablesToFind | None = None,
    sees: Sees = "references",
    picker: str | None = None,
    recompute: float | Recompute | None = None,
    **options: Any,
) -> httpx.AsyncClient:
    """The same for `AsyncOpenAI` and other asynchronous users."""
    ours = _Ours(
        layout=layout,
        auto=auto,
        merge=merge,
        tables=tables,
        sees=sees,
        picker=picker,
        recompute=recompute,
    )
    return _make_async_client(httpx, options, ours)


def httpx2_client(
    *,
    layout: Layout = "tree",
    auto: bool = True,
    merge: bool = False,
    tables: TablesToFind | None = None,
    sees: Sees = "references",
    picker: str | None = None,
    recompute: float | Recompute | None = None,
    **options: Any,
) -> Any:
    """An `httpx2.Client`, for whoever wants one; SDKs on httpx2 take an `httpx.Client` as well.

    Raises ConfigError where httpx2 is not installed.
    """
    ours = _Ours(
        layout=layout,
        auto=auto,
        merge=merge,
        tables=tables,
        sees=sees,
        picker=picker,
        recompute=recompute,
    )
    return _make_client(_httpx2(), options, ours)


def async_httpx2_client(
    *,
    layout: Layout = "tree",
    auto: bool = True,
    merge: bool = False,
    tables: TablesToFind | None = None,
    sees: Sees = "references",
    picker: str | None = None,
    recompute: float | Recompute | None = None,
    **options: Any,
) -> Any:
    """The same as an `httpx2.AsyncClient`."""
    ours = _Ours(
        layout=layout,
        auto=auto,
        merge=merge,
        tables=tables,
        sees=sees,
        picker=picker,
        recompute=recompute,
    )
    return _make_async_client(_httpx2(), options, ours)


def _httpx2() -> Any:
    try:
        return import_module("httpx2")
    except ImportError as error:
        raise ConfigError(
            f"httpx2 is not installed here ({error}): install it, or use depcache.httpx_client()"
        ) from None


def _find_tables(tables: TablesToFind, sees: Sees) -> PromptTables:
    from depcache.tables.prompt_tables import PromptTables  # brings networkx

    return PromptTables.make(tables, sees=sees)


def _make_client(library: Any, options: dict[str, Any], ours: _Ours) -> Any:
    sending = library.HTTPTransport(**_take_transport_options(options))
    transport = DepCacheTransport(sending, **ours)
    return library.Client(transport=transport, **_with_defaults(library, options))


def _make_async_client(library: Any, options: dict[str, Any], ours: _Ours) -> Any:
    sending = library.AsyncHTTPTransport(**_take_transport_options(options))
    transport = AsyncDepCacheTransport(sending, **ours)
    return library.AsyncClient(transport=transport, **_with_defaults(library, options))


def _take_transport_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those that httpx would give to the transport it makes itself."""
    return {name: options.pop(name) for name in _TRANSPORT_OPTIONS if name in options}


def _with_defaults(library: Any, options: dict[str, Any]) -> dict[str, Any]:
    # Those of the OpenAI SDK; a prompt of thousands of tokens takes longer than httpx's 5 seconds.
    timeout = library.Timeout(600.0, connect=10.0)
    return {"timeout": timeout, "follow_redirects": True, **options}
