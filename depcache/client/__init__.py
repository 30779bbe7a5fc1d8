# SPDX-License-Identifier: Apache-2.0
"""Talk to a server with dependency prompts: a client of our own, and a transport for others."""

from __future__ import annotations

from depcache.client.client import Client
from depcache.client.context import GraphContext, graph_context
from depcache.client.reply import Reply, Report, Usage
from depcache.client.stream import ReplyStream
from depcache.client.transport import (
    AsyncDepCacheTransport,
    DepCacheTransport,
    async_httpx_client,
    httpx_client,
)

__all__ = [
    "AsyncDepCacheTransport",
    "Client",
    "DepCacheTransport",
    "GraphContext",
    "Reply",
    "ReplyStream",
    "Report",
    "Usage",
    "async_httpx_client",
    "graph_context",
    "httpx_client",
]
