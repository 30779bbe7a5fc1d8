# SPDX-License-Identifier: Apache-2.0
"""The graphs that workloads are about, in memory: the demo's own, ours and those of public sets."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from depcache.demo.sample import load_triples
from depcache.errors import ConfigError
from depcache.graph.base import GraphStore
from depcache.graph.stores import open_store
from eval.sets import DataSet, SetError, Triple, load_folder, load_kg
from eval.workloads.unseen import UNSEEN, load_unseen

DEMO = "demo"
SAMPLE = "sample"
"""The name of the demo's own graph where one graph is chosen by `--graph`."""


def hold(triples: Iterable[Triple]) -> GraphStore:
    """Returns a graph of these triples in memory."""
    store = open_store("networkx:")
    store.upsert(triples)
    return store


def open_graph(data: Path | None, name: str) -> GraphStore:
    """Returns one graph, for which no other set is read.

    Raises SetError or ConfigError when there is no such graph.
    """
    if name == SAMPLE:
        return hold(load_triples())
    if data is None:
        raise ConfigError(f"where is the graph {name!r}? Name the folder that holds it with --data")
    sets = load_kg(data / name)
    if not sets:
        raise SetError(f"{str(data / name)!r} holds no set: check --data and --graph")
    return hold(sets[0].triples)


class Graphs:
    """The graphs of a folder of public sets, the demo's own and the unseen; each is read once."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._sets = cache(
            lambda: {data.name: data for data in load_folder(folder)} if folder else {}
        )
        self._stores = cache(hold)

    def open(self, name: str) -> tuple[GraphStore, DataSet | None]:
        """Returns the graph, and the set if there is one.

        `metaqa` is the graph of `metaqa_1hop`, ... Raises SetError when there is no such graph.
        """
        if name == DEMO:
            return self._stores(tuple(load_triples())), None
        found = load_unseen() if name.startswith(UNSEEN) else self._sets()
        data = found.get(name) or next(
            (each for key, each in found.items() if key.startswith(f"{name}_")), None
        )
        if data is None:
            known = ", ".join([DEMO, *found])
            if self.folder is None:
                raise SetError(f"there is no graph {name!r}: give --data, or use {known}")
            raise SetError(f"{str(self.folder)!r} holds no {name!r}: use {known}")
        return self._stores(data.triples), data
