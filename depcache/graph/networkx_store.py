# SPDX-License-Identifier: Apache-2.0
"""A graph in memory, as a NetworkX graph: from a TSV, JSONL or GraphML file, or from your own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import Any

import networkx as nx

from depcache.errors import ConfigError, PromptError, shorten
from depcache.graph.base import (
    MAX_SCANNED_EDGES,
    Counts,
    Edge,
    GraphStore,
    Neighbourhood,
    Triple,
    rank_of,
)
from depcache.graph.graph_file import check_lines, is_graphml, require_writable, write_changes
from depcache.graph.triples import read_triples


class NetworkXStore(GraphStore):
    """Triples in a `networkx.MultiDiGraph`: nodes are names, an edge's key is its relation.

    graph  any NetworkX graph to copy triples from; see `triples_of`
    url    shown to a person

    `self.graph` may be read by anyone and is changed through the store only. A store of a file
    writes its changes there; see `depcache.graph.graph_file`.
    """

    def __init__(self, graph: Any = None, *, url: str = "networkx:") -> None:
        self.graph = nx.MultiDiGraph()
        self.url = url
        self._version = 0
        self._lock = RLock()
        self._file: Path | None = None
        self._added: dict[Triple, None] = {}  # what the file does not hold yet, in order
        self._removed: set[Triple] = set()
        if graph is not None:
            self.upsert(triples_of(graph))

    @classmethod
    def from_file(cls, path: str | Path, *, must_exist: bool = True) -> NetworkXStore:
        """A `.graphml` file, or any that `read_triples` reads; malformed lines are left out.

        must_exist  False: a file that is not there is an empty graph, made with its first triple
        """
        path = Path(path)
        store = cls(url=f"networkx:{path}")
        if must_exist or path.exists():
            is_xml = is_graphml(path)
            store.upsert(triples_of(read_graphml(path)) if is_xml else read_triples(path))
        store._file, store.keeps_aliases = path, False
        return store

    def version(self) -> int:
        return self._version

    def is_empty(self) -> bool:
        return not self.graph.number_of_edges()

    def counts(self) -> Counts:
        with self._lock:
            return Counts(
                triples=self.graph.number_of_edges(),
                entities=self.graph.number_of_nodes(),
                relations=len({key for _, _, key in self.graph.edges(keys=True)}),
                aliases=sum(map(len, self.aliases().values())),
            )

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self.graph)

    def names_by_degree(self, limit: int | None = None) -> list[str]:
        with self._lock:
            degrees = list(self.graph.degree())
        num = len(degrees) if limit is None else limit
        ranked = nsmallest(num, degrees, key=lambda item: (-item[1], item[0]))
        return [name for name, _ in ranked]

    def stamp(self) -> str:
        with self._lock:
            ranks = [rank for _, _, rank in self.graph.edges(data="rank")]
        # A sum, so that the order of loading does not count.
        return f"{len(ranks)}-{sum(ranks) % 2**64:x}"

    def aliases(self) -> dict[str, list[str]]:
        with self._lock:
            found = self.graph.nodes(data="aliases")
            return {name: sorted(aliases) for name, aliases in sorted(found) if aliases}

    def triples(self) -> Iterator[Triple]:
        with self._lock:
            edges = list(self.graph.edges(keys=True))
        return ((head, relation, tail) for head, tail, relation in edges)

    def neighbours(
        self, names: Iterable[str], max_edges: int | None = None
    ) -> dict[str, Neighbourhood]:
        with self._lock:
            return {
                name: self._neighbourhood(name, max_edges) for name in names if name in self.graph
            }

    def _neighbourhood(self, name: str, max_edges: int | None) -> Neighbourhood:
        num_edges: int = self.graph.degree(name)
        is_sampled = max_edges is not None and num_edges > max_edges
        scanned = MAX_SCANNED_EDGES if is_sampled else None
        # (rank, is_forward, (head, tail, relation, rank)); an Edge is made of the few that stay.
        forward = self.graph.out_edges(name, keys=True, data="rank")
        inverse = self.graph.in_edges(name, keys=True, data="rank")
        rows = [(row[3], True, row) for row in islice(forward, scanned)]
        rows += [(row[3], False, row) for row in islice(inverse, scanned) if row[0] != name]
        if is_sampled:
            rows = nsmallest(max_edges or 0, rows)
        edges = (
            Edge(relation, is_forward, tail if is_forward else head)
            for _, is_forward, (head, tail, relation, _) in rows
        )
        return Neighbourhood(tuple(sorted(edges)), num_edges, is_sampled)

    def _add_batch(self, triples: Sequence[Triple]) -> list[Triple]:
        with self._lock:
            added = [(h, r, t) for h, r, t in triples if not self.graph.has_edge(h, t, r)]
            if self._file is not None:
                require_writable(self._file)
                check_lines(self._file, added)
                self._added.update(dict.fromkeys(t for t in added if t not in self._removed))
                self._removed.difference_update(added)
            for head, relation, tail in added:
                rank = rank_of((head, relation, tail))
                self.graph.add_edge(head, tail, relation, relation=relation, rank=rank)
            self._version += bool(added)
            return added

    def _remove_batch(self, triples: Sequence[Triple]) -> list[Triple]:
        with self._lock:
            removed = [(h, r, t) for h, r, t in triples if self.graph.has_edge(h, t, r)]
            if self._file is not None:
                require_writable(self._file)
                self._removed.update(triple for triple in removed if triple not in self._added)
                for triple in removed:
                    self._added.pop(triple, None)
            for head, relation, tail in removed:
                self.graph.remove_edge(head, tail, relation)
            ends = {name for head, _, tail in removed for name in (head, tail)}
            self.graph.remove_nodes_from([name for name in ends if not self.graph.degree(name)])
            self._version += bool(removed)
            return removed

    def _add_aliases(self, aliases: Mapping[str, Sequence[str]]) -> set[str]:
        if self._file is not None:
            raise ConfigError(
                f"{str(self._file)!r} has no place for aliases: keep the graph in a .db"
            )
        with self._lock:
            known = {entity for entity in aliases if entity in self.graph}
            for entity in known:
                self.graph.nodes[entity].setdefault("aliases", set()).update(aliases[entity])
            self._version += bool(known)
            return known

    def flush(self) -> None:
        """Write to the file what has changed since the last time, if there is a file."""
        with self._lock:
            if self._file is not None and (self._added or self._removed):
                write_changes(self._file, self._added, self._removed)
                self._added, self._removed = {}, set()


def triples_of(graph: Any, *, relation: str = "relation", name: str = "name") -> Iterator[Triple]:
    """The triples of any NetworkX graph; of an undirected one, as its edges are stored.

    relation  edge attribute with the relation; then "label", then a string edge key
    name      node attribute with the entity's name; without it, `str(node)`

    Raises PromptError when an edge has no relation.
    """
    names = {node: str(data.get(name, node)) for node, data in graph.nodes(data=True)}
    # A multigraph read from GraphML may carry its keys as an attribute only.
    edges = (
        graph.edges(keys=True, data=True)
        if graph.is_multigraph()
        else ((head, tail, None, data) for head, tail, data in graph.edges(data=True))
    )
    for head, tail, key, data in edges:
        text = data.get(relation, data.get("label", key))
        if not isinstance(text, str):
            raise PromptError(
                f"edge ({shorten(head)}, {shorten(tail)}) has no relation: set its attribute "
                f"{relation!r} or 'label' to a string"
            )
        yield names[head], text, names[tail]


def read_graphml(path: Path) -> Any:
    """The graph of a GraphML file; PromptError when it is none."""
    try:
        return nx.read_graphml(path)
    except (OSError, nx.NetworkXError, SyntaxError, ValueError, KeyError) as error:
        # SyntaxError: what the XML parser raises.
        raise PromptError(f"cannot read {str(path)!r} as GraphML ({error}): check it") from error
