# SPDX-License-Identifier: Apache-2.0
"""A graph in memory, as a NetworkX graph: from a file of any known form, or from your own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
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
from depcache.graph.loading import GraphReader

_make_edge = partial(tuple.__new__, Edge)  # of three values, at half the price of `Edge(...)`


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
        self._walked_version = -1  # that of the next two
        self._adjacent: tuple[dict[str, Any], dict[str, Any]] = {}, {}
        self._samples: dict[tuple[str, int], Neighbourhood] = {}
        self._file: Path | None = None
        self._added: dict[Triple, None] = {}  # what the file does not hold yet, in order
        self._removed: set[Triple] = set()
        self._is_renamed = False
        if graph is not None:
            self.upsert(triples_of(graph))

    @classmethod
    def from_file(cls, path: str | Path, *, must_exist: bool = True) -> NetworkXStore:
        """Any file that `GraphReader` reads; malformed lines are left out.

        must_exist  False: a file that is not there is an empty graph, made with its first triple
        """
        path = Path(path)
        store = cls(url=f"networkx:{path}")
        if must_exist or path.exists():
            reader = GraphReader(path)
            store.upsert(reader)
            aliases = reader.aliases()
            store.add_aliases(aliases)
            # What is called otherwise than in the file could not be found there again.
            store._is_renamed = (
                set(triples_of(read_graphml(path))) != set(store.triples())
                if is_graphml(path)
                else bool(aliases)
            )
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
        if self._walked_version != self._version:
            # The graph's own dictionaries: head to tail to relation to attributes, and reverse.
            graph = self.graph
            self._adjacent = dict(graph.adjacency()), dict(graph.reverse(copy=False).adjacency())
            self._samples.clear()
            self._walked_version = self._version
        tails, heads = (adjacent[name] for adjacent in self._adjacent)
        num_edges = sum(map(len, tails.values())) + sum(map(len, heads.values()))
        if max_edges is None or num_edges <= max_edges:
            edges = [_make_edge((r, True, tail)) for tail, keyed in tails.items() for r in keyed]
            edges += [
                _make_edge((r, False, head))
                for head, keyed in heads.items()
                if head != name
                for r in keyed
            ]
            return Neighbourhood(tuple(sorted(edges)), num_edges, is_sampled=False)
        sample = self._samples.get((name, max_edges))
        if sample is None:
            forward = ((e["rank"], True, r, o) for o, ks in tails.items() for r, e in ks.items())
            inverse = (
                (e["rank"], False, r, o)
                for o, ks in heads.items()
                if o != name
                for r, e in ks.items()
            )
            rows = [*islice(forward, MAX_SCANNED_EDGES), *islice(inverse, MAX_SCANNED_EDGES)]
            edges = [_make_edge((r, ahead, o)) for _, ahead, r, o in nsmallest(max_edges, rows)]
            sample = Neighbourhood(tuple(sorted(edges)), num_edges, is_sampled=True)
            self._samples[name, max_edges] = sample
        return sample

    def _add_batch(self, triples: Sequence[Triple]) -> list[Triple]:
        with self._lock:
            added = [(h, r, t) for h, r, t in triples if not self.graph.has_edge(h, t, r)]
            if self._file is not None:
                self._require_writable(self._file)
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
                self._require_writable(self._file)
                self._removed.update(triple for triple in removed if triple not in self._added)
                for triple in removed:
                    self._added.pop(triple, None)
            for head, relation, tail in removed:
                self.graph.remove_edge(head, tail, relation)
            ends = {name for head, _, tail in removed for name in (head, tail)}
            self.graph.remove_nodes_from([name for name in ends if not self.graph.degree(name)])
            self._version += bool(removed)
            return removed

    def _require_writable(self, path: Path) -> None:
        require_writable(path)
        if self._is_renamed:
            raise ConfigError(
                f"{str(path)!r} takes the names of its identifiers from labels, so it is "
                "read-only: load it into a .db and change that"
            )

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
