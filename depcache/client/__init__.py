# SPDX-License-Identifier: Apache-2.0
"""Talk to a server with dependency prompts: a client of our own, and a transport for others.

Names are imported when they are first used: who only asks needs nothing of the transport.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from depcache.lazy import attach

if TYPE_CHECKING:
    from depcache.client.client import Client
    from depcache.client.context import GraphContext, graph_context
    from depcache.client.frameworks import clients, install, report
    from depcache.client.reply import Reply, ReuseReport, Usage
    from depcache.client.stream import ReplyStream
    from depcache.client.transport import (
        AsyncDepCacheTransport,
        DepCacheTransport,
        async_httpx2_client,
        async_httpx_client,
        httpx2_client,
        httpx_client,
    )

__all__ = [
    "AsyncDepCacheTransport",
    "Client",
    "DepCacheTransport",
    "GraphContext",
    "Reply",
    "ReplyStream",
    "ReuseReport",
    "Usage",
    "async_httpx2_client",
    "async_httpx_client",
    "clients",
    "graph_context",
    "httpx2_client",
    "httpx_client",
    "install",
    "report",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "client": ["Client"],
        "context": ["GraphContext", "graph_context"],
        "frameworks": ["clients", "install", "report"],
        "reply": ["Reply", "ReuseReport", "Usage"],
        "stream": ["ReplyStream"],
        "transport": [
            "AsyncDepCacheTransport",
            "DepCacheTransport",
            "async_httpx2_client",
            "async_httpx_client",
            "httpx2_client",
            "httpx_client",
        ],
    },
)
