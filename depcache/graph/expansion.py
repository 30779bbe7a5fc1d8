# SPDX-License-Identifier: Apache-2.0
"""All paths around entities, hop by hop, with a bound on every step.

One call to the store per hop, for all entities together. A path visits no entity twice, so
self loops are in none. Every path is a candidate, the shorter beginning of another one too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from depcache.errors import ConfigError, shorten
from depcache.graph.base import GraphStore, Neighbourhood
from depcache.prompt.paths import INVERSE_RELATION, Path

MAX_HOPS = 8


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far one expansion may go.

    max_edges     most edges looked at per entity: of the first hop, the second, ...; the last
                  number holds for all further hops. Beyond it a fixed sample
    max_frontier  most entities that one hop sets out from, per entity of the question
    max_paths     most candidates, per entity of the question

    Where a bound is met, what was reached through entities of fewer edges stays: a fact that
    half the graph shares says little.
    """

    max_edges: tuple[int, ...] = (1000, 200, 50)
    max_frontier: int = 2000
    max_paths: int = 10_000


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
    store: GraphStore, entities: Sequence[str], num_hops: int, bounds: Bounds = DEFAULT_BOUNDS
) -> dict[str, Expansion]:
    """Paths of 1 to `num_hops` edges from each of `entities` that the graph has.

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
            reached = _step(frontier, near, expansion, room)
            expansion.paths += reached
            if hop + 1 < num_hops:
                frontiers[entity] = _cut(reached, bounds.max_frontier, expansion)
    return expansions


def _step(
    frontier: list[Path], near: dict[str, Neighbourhood], expansion: Expansion, room: int
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
        visited = path[::2]
        reached += [(*path, label, name) for label, name in steps if name not in visited]
        if len(reached) > room:
            expansion.is_cut = True
            return reached[:room]
    return reached


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
