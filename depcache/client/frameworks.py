# SPDX-License-Identifier: Apache-2.0
"""One line for each framework: the clients that it takes, under the names that it gives them.

    ChatOpenAI(base_url=..., api_key="none", **depcache.clients("langchain"))

A framework that gets only one of its two clients sends the calls of the other kind as plain
prompts, without a word. So both are given wherever both are taken.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from depcache.client.cognee_prompt import put_question_last
from depcache.client.reply import ReuseReport
from depcache.client.transport import async_httpx_client, httpx_client
from depcache.errors import ConfigError, shorten

logger = logging.getLogger("depcache")

SYNC, ASYNC = "sync", "async"
KEPT_OPEN = "kept open"
"""An asynchronous client for a framework that closes its client after each call."""

FRAMEWORKS: dict[str, dict[str, str]] = {
    "openai": {"http_client": SYNC},
    "openai-async": {"http_client": ASYNC},
    "llamaindex": {"http_client": SYNC, "async_http_client": ASYNC},
    "langchain": {"http_client": SYNC, "http_async_client": ASYNC},
    "neo4j-graphrag": {"http_client": SYNC},
    "lightrag": {"openai_client_configs.http_client": KEPT_OPEN},
}
"""A framework to its keyword arguments, a dot before the key of a mapping, and what they hold."""

ONE_SIDED = {"neo4j-graphrag": ("asynchronous calls (`ainvoke`)", "llm.async_client")}
"""A framework that takes one client for two kinds of calls: the calls that go out without it, and
the attribute that takes another client afterwards."""

INSTALLABLE = {"litellm": {"client_session": SYNC, "aclient_session": ASYNC}}
"""A library to the attributes of its module that hold the clients of all its calls."""

ADAPTED = {"cognee": ("litellm", put_question_last)}
"""A framework to the library it calls models through, and what else it needs."""


def clients(framework: str, **options: Any) -> dict[str, Any]:
    """The keyword arguments that bring DepCache into `framework`.

    framework  openai, openai-async, llamaindex (`OpenAILike`), langchain (`ChatOpenAI`),
               neo4j-graphrag (`OpenAILLM`, which takes a client for its synchronous calls alone:
               the log says so once),
               lightrag (`openai_complete_if_cache`, for all its calls: LightRAG closes the
               client it is given after each one, so this one stays open)
    options    of `httpx_client` and `async_httpx_client`

    Raises ConfigError for another name.
    """
    wanted = FRAMEWORKS.get(framework)
    if wanted is None:
        raise ConfigError(
            f"{shorten(framework)} is no framework that is known here: use one of "
            f"{', '.join(FRAMEWORKS)}, or pass depcache.httpx_client() yourself"
        )
    if framework in ONE_SIDED and framework not in _warned:
        _warned.add(framework)
        calls, attribute = ONE_SIDED[framework]
        logger.warning(
            "%s takes one client for its synchronous calls alone, so its %s go out as plain "
            "prompts: set %s yourself, or ask synchronously",
            framework,
            calls,
            attribute,
        )
    made: dict[str, Any] = {}
    for name, kind in wanted.items():
        outer, _, inner = name.rpartition(".")
        holder = made.setdefault(outer, {}) if outer else made
        holder[inner] = _make(kind, options)
    return made


def install(library: str, **options: Any) -> None:
    """Bring DepCache into all calls of `library` in this process.

    library  litellm: GraphRAG-SDK, MS GraphRAG and cognee call models through it. cognee: that, and
             its prompt has the question behind the facts, not before them
    options  as for `clients`

    Raises ConfigError for another name, or where the library is not installed.
    """
    through, adapt = ADAPTED.get(library, (library, None))
    wanted = INSTALLABLE.get(through)
    if wanted is None:
        raise ConfigError(
            f"{shorten(library)} cannot be given clients for the whole process: use one of "
            f"{', '.join((*INSTALLABLE, *ADAPTED))}, or depcache.clients(...)"
        )
    try:
        module = import_module(through)
        if adapt is not None:
            adapt()
    except ImportError as error:
        raise ConfigError(f"{library} is not installed here ({error}): install it first") from None
    for name, kind in wanted.items():
        setattr(module, name, _make(kind, options))


def report(reply: Any) -> ReuseReport | None:
    """What a server says was reused for `reply`; None from a server without DepCache.

    reply  what a client made of it: parsed JSON, an object of the OpenAI SDK or of LiteLLM, a
           LlamaIndex response (`raw`), our own `Reply`, or what keeps one of these or its fields in
           `response_metadata`, `additional_kwargs` or `model_extra`

    LangChain 1.7 and neo4j-graphrag 1.22 drop what they do not know, and the report with it.
    """
    for holder in (reply, *(_get(reply, name) for name in _WRAPPERS)):
        own = _get(holder, "depcache")
        if isinstance(own, ReuseReport):
            return own
        for name in ("metadata", "meta_info"):
            found = ReuseReport.from_dict(_get(_get(holder, name), "depcache"))
            if found is not None:
                return found
    return None


_warned: set[str] = set()  # frameworks of which the log has said so in this process

_WRAPPERS = ("raw", "response_metadata", "additional_kwargs", "model_extra")


def _get(holder: Any, name: str) -> Any:
    if isinstance(holder, dict):
        return holder.get(name)
    return getattr(holder, name, None)


def _make(kind: str, options: dict[str, Any]) -> Any:
    if kind == SYNC:
        return httpx_client(**options)
    client = async_httpx_client(**options)
    if kind == KEPT_OPEN:
        client.aclose = _stay_open
    return client


async def _stay_open() -> None:
    pass
