# SPDX-License-Identifier: Apache-2.0
"""Dependency prompts: the KV of a fact is computed once and reused wherever the fact appears.

    prompt = depcache.render(paths, "Who founded SpaceX?")
    client.chat.completions.create(
        model=..., messages=prompt.messages, extra_body=prompt.extra_body
    )

Works with no GPU, no SGLang and no torch; names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from depcache.lazy import attach

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

__getattr__, __dir__ = attach(
    __name__,
    {
        "client.client": ["Client"],
        "client.context": ["graph_context"],
        "client.frameworks": ["clients", "install", "report"],
        "client.neo4j_rows": ["neo4j_rows"],
        "client.transport": [
            "AsyncDepCacheTransport",
            "DepCacheTransport",
            "async_httpx2_client",
            "async_httpx_client",
            "httpx2_client",
            "httpx_client",
        ],
        "errors": ["ConfigError", "DepCacheError", "PromptError", "ServerError"],
        "prompt.dep_prompt": ["DepPrompt"],
        "prompt.nodes": ["LinearNode", "TreeNode"],
        "prompt.recompute": ["Recompute"],
        "prompt.render": ["RenderedPrompt", "render", "render_chunks"],
        "prompt.template": ["Template", "register_template"],
        "recognition.recognise": ["Recognised", "recognise"],
        "recognition.recogniser": ["Recogniser"],
        "recognition.table": ["recognisers", "register_recogniser"],
    },
)
