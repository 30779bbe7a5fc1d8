# SPDX-License-Identifier: Apache-2.0
"""Find the paths of a graph that a question is about: link names, walk, keep the best.

Small on purpose: it serves the demo, in memory, with words for a measure of relevance.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from depcache.prompt.paths import INVERSE_RELATION, Path

if TYPE_CHECKING:
    import networkx as nx

_NGRAM = 4


class Retriever:
    """Paths for questions.

    graph      edges carry their relation in the attribute `relation`; nodes are names
    max_hops   edges of the longest path
    max_paths  paths kept for each entity that a question names
    """

    def __init__(self, graph: nx.MultiDiGraph, *, max_hops: int = 2, max_paths: int = 30) -> None:
        self._graph = graph
        self._max_hops = max_hops
        self._max_paths = max_paths
        self._names = sorted(graph, key=len, reverse=True)
        self._paths: dict[str, list[Path]] = {}
        texts = [f"{u} {data['relation']} {v}" for u, v, data in graph.edges(data=True)]
        counts = Counter(gram for text in texts for gram in set(_grams(text)))
        self._weights = {gram: math.log(len(texts) / count) for gram, count in counts.items()}

    def link(self, question: str) -> list[str]:
        """The entities a question names, in its order; of names that overlap, the longest."""
        found: list[tuple[int, int, str]] = []
        for name in self._names:
            for match in re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", question):
                if all(match.end() <= start or stop <= match.start() for start, stop, _ in found):
                    found.append((match.start(), match.end(), name))
        return list(dict.fromkeys(name for _, _, name in sorted(found)))

    def retrieve(self, question: str, *, by_relevance: bool = False) -> list[Path]:
        """The best paths of every entity in the question, entity by entity.

        by_relevance  order entities and paths by their relevance, best first, as a search
                      that ranks would; otherwise as in the question and in the graph. The
                      paths are the same either way.
        """
        wanted = set(_grams(question))
        groups: list[tuple[float, list[Path]]] = []
        for entity in self.link(question):
            paths = self._walk_from(entity)
            scores = [self._score(path, wanted) for path in paths]
            ranked = sorted(range(len(paths)), key=lambda i: (-scores[i], i))[: self._max_paths]
            if ranked:
                order = ranked if by_relevance else sorted(ranked)
                groups.append((scores[ranked[0]], [paths[i] for i in order]))
        if by_relevance:
            groups.sort(key=lambda group: -group[0])
        return [path for _, paths in groups for path in paths]

    def _walk_from(self, entity: str) -> list[Path]:
        """All paths from `entity` that are not the start of another one, in the graph's order.

        Edges are walked both ways; one walked against its direction says so.
        """
        if entity not in self._paths:
            self._paths[entity] = list(self._extend((entity,), {entity}))
        return self._paths[entity]

    def _extend(self, path: Path, visited: set[str]) -> Iterator[Path]:
        is_whole = True
        if len(path) <= 2 * self._max_hops:
            for relation, node in self._neighbours(path[-1]):
                if node not in visited:
                    is_whole = False
                    yield from self._extend((*path, relation, node), visited | {node})
        if is_whole and len(path) > 1:
            yield path

    def _neighbours(self, entity: str) -> Iterator[tuple[str, str]]:
        for _, node, data in self._graph.out_edges(entity, data=True):
            yield data["relation"], node
        for node, _, data in self._graph.in_edges(entity, data=True):
            yield INVERSE_RELATION + data["relation"], node

    def _score(self, path: Path, wanted: set[str]) -> float:
        """How much of the question's letter groups the path holds, rare ones counting more."""
        # Not its first entity, which every path of the entity shares.
        grams = {gram for element in path[1:] for gram in _grams(element)} & wanted
        return sum(self._weights.get(gram, 0.0) for gram in grams)


def _grams(text: str) -> list[str]:
    """Groups of letters, so that "born" meets "birthplace" halfway and "flow" "flows" wholly."""
    words = re.findall(r"\w+", text.removeprefix(INVERSE_RELATION).casefold())
    return [word[i : i + _NGRAM] for word in words for i in range(max(1, len(word) - _NGRAM + 1))]
