# SPDX-License-Identifier: Apache-2.0
"""All paths around entities, hop by hop, with a bound on every step.

One call to the store per hop, for all entities together. A path visits no entity twice, so
self loops are in none, unless repeats are allowed. Every path is a candidate, the shorter
beginning of another one too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest

import numpy as np

from depcache.errors import ConfigError, shorten
from depcache.graph.base import GraphStore, Neighbourhood
from depcache.prompt.paths import INVERSE_RELATION, Path

MAX_HOPS = 8

Guide = Callable[[str, Sequence[Path]], np.ndarray | None]
"""From an entity and sequences of relations to what each has to do with the question."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far one expansion may go.

    max_edges     most edges looked at per entity: of the first hop, the second, ...; the last
                  number holds for all further hops. Beyond it a fixed sample
    max_frontier  most entities that one hop sets out from, per entity of the question
    max_paths     most candidates, per entity of the question
    max_guided    most paths that go on where a question says which relations are asked for: every
                  sequence of relations has a part in them, the better ones a larger one

    Where a bound is met, what was reached through entities of fewer edges stays: a fact that
    half the graph shares says little.
    """

    max_edges: tuple[int, ...] = (1000, 200, 50)
    max_frontier: int = 2000
    max_paths: int = 10_000
    max_guided: int = 400


_PLACE_COST = 0.02

DEFAULT_BOUNDS = Bounds()


@dataclass(slots=True)
class Expansion:
    """The candidates of one entity.

    hubs    entities whose edges were sampled: (edges looked at, edges in all)
    is_cut  whether max_frontier or max_paths left something out
    """

    paths: list[Path] = field(default_factory=list)
    hubs: dict[str, tuple[int, int]] = field(default_factory=dict)
    is_cut: bool = False


def expand(
    store: GraphStore,
    entities: Sequence[str],
    num_hops: int,
    bounds: Bounds = DEFAULT_BOUNDS,
    *,
    guide: Guide | None = None,
    allow_repeats: bool = False,
) -> dict[str, Expansion]:
    """Paths of 1 to `num_hops` edges from each of `entities` that the graph has.

    guide          decides which paths go on where there are many (`Bounds.max_guided`)
    allow_repeats  a path may come to an entity again, and go along a self loop; it walks no edge
                   twice in a row, neither on nor back

    The order of the paths is fixed, and means nothing. Raises ConfigError when `num_hops` is
    not within 1 and MAX_HOPS.
    """
    if not isinstance(num_hops, int) or not 1 <= num_hops <= MAX_HOPS:
        raise ConfigError(f"num_hops is {shorten(num_hops)}: choose 1 to {MAX_HOPS}")
    expansions: dict[str, Expansion] = {}
    frontiers: dict[str, list[Path]] = {entity: [(entity,)] for entity in entities}
    for hop in range(num_hops):
        ends = dict.fromkeys(path[-1] for paths in frontiers.values() for path in paths)
        max_edges = bounds.max_edges[min(hop, len(bounds.max_edges) - 1)]
        near = store.neighbours(ends, max_edges)
        if hop == 0:
            frontiers = {entity: paths for entity, paths in frontiers.items() if entity in near}
            expansions = {entity: Expansion() for entity in frontiers}
        for entity, frontier in frontiers.items():
            expansion = expansions[entity]
            room = bounds.max_paths - len(expansion.paths)
            reached = _step(frontier, near, expansion, room, allow_repeats)
            expansion.paths += reached
            if hop + 1 < num_hops:
                if guide is not None:
                    reached = _choose(reached, bounds.max_guided, guide)
                frontiers[entity] = _cut(reached, bounds.max_frontier, expansion)
    return expansions


def _step(
    frontier: list[Path],
    near: dict[str, Neighbourhood],
    expansion: Expansion,
    room: int,
    allow_repeats: bool,
) -> list[Path]:
    """Every path of the frontier with one more edge, small entities first."""
    reached: list[Path] = []
    frontier = [path for path in frontier if path[-1] in near]
    frontier.sort(key=lambda path: (near[path[-1]].num_edges, path))
    steps_of: dict[str, list[tuple[str, str]]] = {}  # many paths may end at one entity
    for path in frontier:
        end = path[-1]
        steps = steps_of.get(end)
        if steps is None:
            around = near[end]
            if around.is_sampled:
                expansion.hubs[end] = (len(around.edges), around.num_edges)
            steps = steps_of[end] = [
                (relation if is_forward else INVERSE_RELATION + relation, name)
                for relation, is_forward, name in around.edges
            ]
        if allow_repeats:
            back = _turned(path)
            reached += [(*path, label, name) for label, name in steps if (label, name) not in back]
        else:
            visited = path[::2]
            reached += [(*path, label, name) for label, name in steps if name not in visited]
        if len(reached) > room:
            expansion.is_cut = True
            return reached[:room]
    return reached


def _turned(path: Path) -> tuple[tuple[str, str], ...]:
    """The steps that would walk the last edge of a path again, back or on."""
    if len(path) < 3:
        return ()
    before, label, here = path[-3:]
    is_inverse = label.startswith(INVERSE_RELATION)
    turned = label.removeprefix(INVERSE_RELATION) if is_inverse else INVERSE_RELATION + label
    return ((turned, before), (label, here)) if before == here else ((turned, before),)


def _choose(paths: list[Path], max_paths: int, guide: Guide) -> list[Path]:
    """The paths that go on, by the words of the question."""
    if len(paths) <= max_paths:
        return paths
    by_kind: dict[Path, list[Path]] = {}
    for path in paths:
        by_kind.setdefault(path[1::2], []).append(path)
    kinds = list(by_kind)
    scores = guide(paths[0][0], kinds)
    if scores is None:
        return paths
    # The n-th path of a kind stands where a kind of a score that much lower has its first.
    turns = nsmallest(
        max_paths,
        (
            (_PLACE_COST * turn - score, number, turn)
            for number, score in enumerate(scores.tolist())
            for turn in range(min(len(by_kind[kinds[number]]), max_paths))
        ),
    )
    return [by_kind[kinds[number]][turn] for _, number, turn in turns]


def _cut(paths: list[Path], max_frontier: int, expansion: Expansion) -> list[Path]:
    """The paths that go on: to the first `max_frontier` entities."""
    if len(paths) <= max_frontier:
        return paths
    ends = list(dict.fromkeys(path[-1] for path in paths))
    if len(ends) <= max_frontier:
        return paths
    expansion.is_cut = True
    kept = set(ends[:max_frontier])
    return [path for path in paths if path[-1] in kept]
