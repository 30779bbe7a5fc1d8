# SPDX-License-Identifier: Apache-2.0
"""Which entities of a graph: the most connected ones, all, or those that a file names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from depcache.errors import ConfigError, PromptError, shorten
from depcache.graph.base import GraphStore, check_text
from depcache.text_file import read_text

DEFAULT_ENTITIES = "top:1000"


def select_entities(store: GraphStore, wanted: str = DEFAULT_ENTITIES) -> list[str]:
    """Names, each once, in the order in which they are best computed.

    top:N      the N entities of most edges, most first
    all        every entity, in the same order
    file:PATH  one name a line, in the order of the file; names that the graph does not have
               are not looked for here

    Raises ConfigError for another form, PromptError for a file that cannot be read.
    """
    kind, colon, rest = wanted.partition(":")
    if wanted == "all":
        return store.names_by_degree()
    if kind == "top" and rest.isdecimal() and rest.isascii() and int(rest) > 0:
        return store.names_by_degree(int(rest))
    if kind == "file" and colon and rest:
        return read_names(Path(rest))
    raise ConfigError(
        f"{shorten(wanted)} is no choice of entities: use top:N (from 1), all, or file:PATH"
    )


def read_names(path: Path) -> list[str]:
    """Those of a file, one a line, each once and in its order; PromptError if it is not read."""
    names = (line.removesuffix("\r") for line in read_text(path).split("\n"))
    return list(dict.fromkeys(name for name in names if name.strip()))


def require_entities(store: GraphStore, names: Sequence[str]) -> None:
    """Raise PromptError for the first of these names that the graph has not."""
    for name in names:
        check_text(name, "the list of entities")
    known = store.neighbours(names, 1)
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        nearest = ", ".join(map(repr, _find_nearest(store, unknown)))
        hint = f"the nearest names are {nearest}" if nearest else "check the name"
        raise PromptError(f"the graph {store.url} has no entity {shorten(unknown)}: {hint}")


def _find_nearest(store: GraphStore, name: str) -> list[str]:
    """Entities with the names most like this one; none where names cannot be compared."""
    from depcache.graph.linking import EntityLinker

    try:
        return EntityLinker(store.names(), store.aliases()).nearest(name)
    except ConfigError:  # without the extra `graph`
        return []
