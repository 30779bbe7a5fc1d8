# SPDX-License-Identifier: Apache-2.0
"""Rows that see other rows, as trees and joins.

Which rows a row sees is a graph. Rows that see each other are one *unit*: they stand one behind the
other and are seen as a whole. Units have no cycles, so what a unit sees is a set of earlier units,
of which the *nearest* say all: the others are seen by these.

    nearest    what the unit is
    none       a tree of its own
    one        a child of that one, behind its last token
    several    a tree that is joined to these (see `flashinfer_masks.joins`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from depcache.prompt.prefix_tree import Context, merge_sequences_whole

Joins = dict[int, list[int]]


@dataclass(eq=False, slots=True)
class _Segment:
    """A run of tokens on its way into the prompt; `number` counts in pre-order."""

    tokens: list[int]
    children: list[_Segment] = field(default_factory=list)
    above: _Segment | None = None
    number: int = -1


@dataclass(eq=False, slots=True)
class _Group:
    """Units with the same nearest units.

    level  of the trees: above those of all that they see
    """

    nearest: list[int]
    level: int
    units: list[int] = field(default_factory=list)
    roots: list[_Segment] = field(default_factory=list)


def hang_rows(
    rows: Sequence[list[int]], sees: Sequence[Sequence[int]], *, merge: bool
) -> tuple[Context, Joins]:
    """The segments of rows that see other rows, and their joins as `Forest.make` takes them.

    rows   tokens of each row, at least one
    sees   for each row the numbers of others that it sees; what these see need not be named
    merge  whether units that see the same share the tokens that they begin with. A unit always
           ends where a segment ends, so nobody sees more than was named

    What sees nothing keeps its order, a child stands behind what it sees, and joined trees come
    last. O(tokens + rows * rows / 64).
    """
    units = list(_units(sees))
    unit_of = {row: number for number, unit in enumerate(units) for row in unit}
    groups: dict[int, _Group] = {}  # by the nearest, as bits
    closures: list[int] = []  # of each unit, as bits
    levels: list[int] = []
    for number, unit in enumerate(units):
        named = {unit_of[other] for row in unit for other in sees[row]} - {number}
        implied = 0
        for other in named:
            implied |= closures[other]
        nearest = sorted(other for other in named if not implied >> other & 1)
        key = sum(1 << other for other in nearest)
        closures.append(implied | key)
        if key not in groups:
            level = max((levels[other] for other in nearest), default=0) + (len(nearest) > 1)
            groups[key] = _Group(nearest, level)
        groups[key].units.append(number)
        levels.append(groups[key].level)

    ends: dict[int, _Segment] = {}
    # In the order of their first units, so that what a group hangs below has its place.
    for group in groups.values():
        group.units.sort(key=lambda number: units[number][0])
        ways = [[rows[row] for row in units[number]] for number in group.units]
        found = _merge(ways) if merge else [_chain(way) for way in ways]
        ends.update(zip(group.units, (end for _, end in found), strict=True))
        group.roots = [root for root, _ in found if root is not None]
        if len(group.nearest) == 1:
            above = ends[group.nearest[0]]
            above.children += group.roots
            for root in group.roots:
                root.above = above

    trees = [group for group in groups.values() if len(group.nearest) != 1]
    trees.sort(key=lambda group: (group.level, units[group.units[0]][0]))
    context = _number([root for group in trees for root in group.roots])
    joins: Joins = {}
    for group in trees:
        seen = _lowest({ends[other] for other in group.nearest})
        if seen:
            joins.update((root.number, seen) for root in group.roots)
    return context, joins


def _units(sees: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Rows that see each other, ascending; a unit comes behind all that it sees."""
    import networkx as nx  # heavy, and only for rows that see rows

    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(sees)))
    graph.add_edges_from((row, other) for row, seen in enumerate(sees) for other in seen)
    yield from map(sorted, nx.strongly_connected_components(graph))


def _chain(way: list[list[int]]) -> tuple[_Segment, _Segment]:
    """First and last segment of a unit whose rows stand whole."""
    segments = [_Segment(row) for row in way]
    for above, below in pairwise(segments):
        above.children.append(below)
        below.above = above
    return segments[0], segments[-1]


def _merge(ways: list[list[list[int]]]) -> list[tuple[_Segment | None, _Segment]]:
    """For each unit the root of its tree, where it is the first of it, and its last segment."""
    sequences = [[token for row in way for token in row] for way in ways]
    (tokens, lens, parents), ends = merge_sequences_whole(sequences)
    segments: list[_Segment] = []
    start = 0
    for length, parent in zip(lens, parents, strict=True):
        segment = _Segment(tokens[start : start + length])
        start += length
        if parent >= 0:
            segment.above = segments[parent]
            segments[parent].children.append(segment)
        segments.append(segment)
    roots: list[_Segment | None] = [s for s in segments if s.above is None]
    roots += [None] * (len(ways) - len(roots))
    return list(zip(roots, (segments[end] for end in ends), strict=True))


def _number(roots: list[_Segment]) -> Context:
    """Tokens, lengths and parents of all segments, which learn their numbers."""
    tokens: list[int] = []
    lens: list[int] = []
    parents: list[int] = []
    stack = roots[::-1]
    while stack:
        segment = stack.pop()
        segment.number = len(lens)
        tokens += segment.tokens
        lens.append(len(segment.tokens))
        parents.append(-1 if segment.above is None else segment.above.number)
        stack += segment.children[::-1]
    return tokens, lens, parents


def _lowest(ends: set[_Segment]) -> list[int]:
    """Their numbers, ascending, but of those that lie above another: it is their continuation."""
    above: set[_Segment] = set()
    for end in ends:
        way = end.above
        while way is not None and way not in above:
            above.add(way)
            way = way.above
    return sorted(end.number for end in ends - above)
