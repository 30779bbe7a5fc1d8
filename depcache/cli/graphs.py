# SPDX-License-Identifier: Apache-2.0
"""The graph that a command reads: it must be there and hold something, or the command says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from depcache.errors import ConfigError
from depcache.graph.stores import open_store

if TYPE_CHECKING:
    from depcache.graph.base import GraphStore
    from depcache.graph.retrieval import Retriever

Graph = Annotated[
    str,
    typer.Option(
        envvar="DEPCACHE_GRAPH",
        help="A .db file for the embedded FalkorDB, falkor://host:port/graph, or a .tsv, .jsonl or "
        ".graphml file to read into memory.",
    ),
]


@contextmanager
def open_graph(url: str) -> Iterator[GraphStore]:
    """The store of a graph that is there and not empty; ConfigError otherwise."""
    with open_store(url, must_exist=True) as store:
        if store.is_empty():
            raise ConfigError(
                f"the graph {store.url} is empty: correct the address, or fill it with "
                "`depcache graph load FILE --graph ...`"
            )
        yield store


@contextmanager
def open_retriever(url: str, pruner: str) -> Iterator[Retriever]:
    """A retriever over such a graph."""
    from depcache.graph.pruning import get_pruner
    from depcache.graph.retrieval import Retriever

    chosen = get_pruner(pruner)  # a wrong name must not start a database
    with open_graph(url) as store:
        yield Retriever(store, pruner=chosen)
