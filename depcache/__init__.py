# SPDX-License-Identifier: Apache-2.0
"""Dependency prompts: the KV of a fact is computed once and reused wherever the fact appears.

    prompt = depcache.render(paths, "Who founded SpaceX?")
    client.chat.completions.create(
        model=..., messages=prompt.messages, extra_body=prompt.extra_body
    )

Works with no GPU, no SGLang and no torch; names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from depcache.client.client import Client
    from depcache.client.context import graph_context
    from depcache.client.frameworks import clients, install, report
    from depcache.client.neo4j_rows import neo4j_rows
    from depcache.client.transport import (
        AsyncDepCacheTransport,
        DepCacheTransport,
        async_httpx2_client,
        async_httpx_client,
        httpx2_client,
        httpx_client,
    )
    from depcache.errors import ConfigError, DepCacheError, PromptError, ServerError
    from depcache.prompt.dep_prompt import DepPrompt
    from depcache.prompt.nodes import LinearNode, TreeNode
    from depcache.prompt.recompute import Recompute
    from depcache.prompt.render import RenderedPrompt, render, render_chunks
    from depcache.prompt.template import Template, register_template
    from depcache.recognition.recognise import Recognised, recognise
    from depcache.recognition.recogniser import Recogniser
    from depcache.recognition.table import recognisers, register_recogniser

__version__ = "0.2.0"

__all__ = [
    "AsyncDepCacheTransport",
    "Client",
    "ConfigError",
    "DepCacheError",
    "DepCacheTransport",
    "DepPrompt",
    "LinearNode",
    "PromptError",
    "Recognised",
    "Recogniser",
    "Recompute",
    "RenderedPrompt",
    "ServerError",
    "Template",
    "TreeNode",
    "async_httpx2_client",
    "async_httpx_client",
    "clients",
    "graph_context",
    "httpx2_client",
    "httpx_client",
    "install",
    "neo4j_rows",
    "recognise",
    "recognisers",
    "register_recogniser",
    "register_template",
    "render",
    "render_chunks",
    "report",
]

_HOMES = {
    "depcache.client.client": ["Client"],
    "depcache.client.context": ["graph_context"],
    "depcache.client.frameworks": ["clients", "install", "report"],
    "depcache.client.neo4j_rows": ["neo4j_rows"],
    "depcache.client.transport": [
        "AsyncDepCacheTransport",
        "DepCacheTransport",
        "async_httpx2_client",
        "async_httpx_client",
        "httpx2_client",
        "httpx_client",
    ],
    "depcache.errors": ["ConfigError", "DepCacheError", "PromptError", "ServerError"],
    "depcache.prompt.dep_prompt": ["DepPrompt"],
    "depcache.prompt.nodes": ["LinearNode", "TreeNode"],
    "depcache.prompt.recompute": ["Recompute"],
    "depcache.prompt.render": ["RenderedPrompt", "render", "render_chunks"],
    "depcache.prompt.template": ["Template", "register_template"],
    "depcache.recognition.recognise": ["Recognised", "recognise"],
    "depcache.recognition.recogniser": ["Recogniser"],
    "depcache.recognition.table": ["recognisers", "register_recogniser"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'depcache' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
