# SPDX-License-Identifier: Apache-2.0
"""From a question to relation paths: link its entities, walk around them, keep the best.

    retriever = Retriever("graph.db")
    found = retriever.retrieve("Who directed the film that Ann Lee wrote?")
    depcache.render(found.paths, question)

The same question over the same version of a graph gives the same paths in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import Any

from depcache.errors import ConfigError, shorten
from depcache.graph.base import GraphStore
from depcache.graph.expansion import DEFAULT_BOUNDS, Bounds, Expansion, expand
from depcache.graph.linking import DEFAULT_THRESHOLD, EXACT, EntityLinker, Link
from depcache.graph.pruning import Pruner, get_pruner, prune, stable_key
from depcache.graph.stores import open_store
from depcache.prompt.paths import Path

NUM_ENTITIES = 10
NUM_HOPS = 2
NUM_PATHS = 30


@dataclass(frozen=True, slots=True)
class Retrieved:
    """What a question is about. Iterating over it gives the paths.

    entities    in the order of the trees: as in the question, or by relevance if that was asked
    paths       entity by entity; a path that begins another one is left out
    links       where in the question each entity is named; empty for given entities
    timings_ms  link, expand, prune, total; milliseconds
    notes       what a person should know: nothing linked, a hub sampled, a bound met
    """

    entities: tuple[str, ...]
    paths: tuple[Path, ...]
    links: tuple[Link, ...] = ()
    timings_ms: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Path]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)


class Retriever:
    """Paths for questions. Safe to share by threads.

    store      a `GraphStore`, an address for `open_store`, or a NetworkX graph
    pruner     name or object; see `depcache.graph.pruning`
    threshold  from which a similar name counts; see `depcache.graph.linking`
    bounds     of one expansion; see `depcache.graph.expansion`
    max_hops   default of `num_hops` below; likewise `max_paths` and `max_entities`

    The names of the graph are held in memory and read again when its version has changed.
    """

    def __init__(
        self,
        store: Any,
        *,
        pruner: str | Pruner | None = "auto",
        threshold: float = DEFAULT_THRESHOLD,
        bounds: Bounds = DEFAULT_BOUNDS,
        max_hops: int = NUM_HOPS,
        max_paths: int = NUM_PATHS,
        max_entities: int = NUM_ENTITIES,
    ) -> None:
        self.store: GraphStore = open_store(store, must_exist=True)
        self._pruner = get_pruner(pruner)
        self._threshold = threshold
        self._bounds = bounds
        self._max_hops = max_hops
        self._max_paths = max_paths
        self._max_entities = max_entities
        self._linker: EntityLinker | None = None
        self._version = -1
        self._lock = RLock()

    def linker(self) -> EntityLinker:
        """The linker of the graph as it is now."""
        with self._lock:
            version = self.store.version()
            if self._linker is None or version != self._version:
                self._linker = EntityLinker(
                    self.store.names(),
                    self.store.aliases(),
                    relations=self.store.relations(),
                    threshold=self._threshold,
                )
                self._version = version
            return self._linker

    def link(self, question: str, num_entities: int | None = None) -> list[str]:
        """The entities a question names, in its order."""
        count = self._max_entities if num_entities is None else num_entities
        return [link.entity for link in self.linker().link(question, max_entities=count)]

    def retrieve(
        self,
        question: str,
        num_entities: int | None = None,
        num_hops: int | None = None,
        num_paths: int | None = None,
        *,
        entities: Sequence[str] | None = None,
        by_relevance: bool = False,
        allow_repeats: bool = False,
    ) -> Retrieved:
        """The best paths of every entity in the question, entity by entity.

        num_entities  N: entities that paths are looked for, the longest names first; 10
        num_hops      L: edges of the longest path; 2
        num_paths     K: paths of each entity; 30
        entities      use these instead of linking
        by_relevance  order entities and paths by their relevance, best first; otherwise
                      entities as in the question and paths in the stable order. The paths
                      are the same either way
        allow_repeats paths may come to an entity twice, and go along self loops

        Raises ConfigError for a number out of range.
        """
        num_entities = self._max_entities if num_entities is None else num_entities
        num_hops = self._max_hops if num_hops is None else num_hops
        num_paths = self._max_paths if num_paths is None else num_paths
        for name, value in (("num_entities", num_entities), ("num_paths", num_paths)):
            if value < 1:
                raise ConfigError(f"{name} is {shorten(value)}: choose at least 1")
        started = time.perf_counter()
        links: list[Link] = []
        notes: list[str] = []
        if entities is None:
            linker = self.linker()
            links = linker.link(question, max_entities=num_entities)
            notes += _note_links(question, links, linker)
            entities = list(dict.fromkeys(link.entity for link in links))
        linked = time.perf_counter()
        expansions = expand(
            self.store,
            list(dict.fromkeys(entities)),
            num_hops,
            self._bounds,
            guide=partial(self._pruner.score_kinds, question),
            allow_repeats=allow_repeats,
        )
        notes += _note_unknown(entities, expansions, self)
        notes += _note_bounds(expansions, num_hops)
        expanded = time.perf_counter()
        groups = [
            (entity, prune(question, found.paths, num_paths, self._pruner, ranked=by_relevance))
            for entity, found in expansions.items()
        ]
        if by_relevance:
            groups.sort(key=lambda group: -group[1][0][1] if group[1] else 0.0)
        else:
            for _, ranked in groups:
                ranked.sort(key=lambda item: stable_key(item[0]))
        done = time.perf_counter()
        return Retrieved(
            entities=tuple(entity for entity, _ in groups),
            paths=tuple(path for _, ranked in groups for path, _ in ranked),
            links=tuple(links),
            timings_ms={
                "link": (linked - started) * 1000,
                "expand": (expanded - linked) * 1000,
                "prune": (done - expanded) * 1000,
                "total": (done - started) * 1000,
            },
            notes=tuple(notes),
        )


def _note_links(question: str, links: Sequence[Link], linker: EntityLinker) -> Iterator[str]:
    if not links:
        nearest = linker.nearest(question)
        hint = f": the nearest names are {_join(nearest)}" if nearest else ""
        yield f"the question names no entity of the graph{hint}"
    for link in links:
        if link.score < EXACT:
            written = question[link.start : link.stop]
            yield f"{written!r} was read as {link.entity!r} (similarity {link.score:.0f} of 100)"


def _note_unknown(
    entities: Sequence[str], expansions: dict[str, Expansion], retriever: Retriever
) -> Iterator[str]:
    for entity in entities:
        if entity not in expansions:
            nearest = retriever.linker().nearest(entity)
            hint = f": the nearest names are {_join(nearest)}" if nearest else ""
            yield f"the graph has no entity {entity!r}{hint}"


def _note_bounds(expansions: dict[str, Expansion], num_hops: int) -> Iterator[str]:
    hubs: dict[str, tuple[int, int]] = {}
    for entity, found in expansions.items():
        hubs |= found.hubs
        if found.is_cut:
            yield (
                f"{entity!r} has more than {len(found.paths):,} paths within {num_hops} hops: "
                "those through entities of fewer edges were looked at"
            )
    biggest = sorted(hubs.items(), key=lambda item: (-item[1][1], item[0]))
    for name, (seen, num_edges) in biggest[:3]:
        yield f"{name!r} has {num_edges:,} edges: a fixed sample of {seen:,} was looked at"
    if len(biggest) > 3:
        yield f"{len(biggest) - 3} more entities of many edges were sampled"


def _join(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)
