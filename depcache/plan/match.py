# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a prompt are cached, and in which tier."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

from depcache.cache.node import Node
from depcache.cache.radix import TOKEN_BYTES, common_prefix_tokens
from depcache.cache.tree import KVTree
from depcache.plan.public import BELOW, NOT_WHOLE, ON_DEVICE, choose_public
from depcache.plan.segments import SegmentTable


@dataclass(slots=True, eq=False)
class Match:
    """What of a prompt is cached, and where.

    nodes    resident nodes, parents before children (a node twice where two segments begin alike),
             with the prompt index (`starts`) and the position (`placed`) of the first token
    in_tiers  per tier below the device, the fastest first: nodes whose KV is there and in none
             that is faster; with `tier_starts`, as `starts`
    ends     per segment the deepest matched node, None where nothing matched
    matched  per segment the number of its leading tokens that matched
    tail_end  the deepest node of the tail; None where nothing of it was found, or looked for
    is_mixed  some segments were found among what is public, others not
    """

    nodes: list[Node]
    starts: list[int]
    placed: list[int]
    in_tiers: list[list[Node]]
    tier_starts: list[list[int]]
    ends: list[Node | None]
    matched: list[int]
    tail_end: Node | None = None
    is_mixed: bool = False

    @classmethod
    def empty(cls, num_segments: int, num_tiers: int) -> Match:
        """Nothing is found so far."""
        in_tiers: list[list[Node]] = [[] for _ in range(num_tiers)]
        tier_starts: list[list[int]] = [[] for _ in range(num_tiers)]
        return cls([], [], [], in_tiers, tier_starts, [None] * num_segments, [0] * num_segments)

    @property
    def loadable(self) -> tuple[list[Node], list[int]]:
        """Nodes that the device can be given from the fastest tier, and where they start."""
        return (self.in_tiers[0], self.tier_starts[0]) if self.in_tiers else ([], [])


def match_segments(
    tree: KVTree,
    root: Node,
    table: SegmentTable,
    *,
    allow_shift: bool = True,
    any_position: bool = False,
    num_tiers: int | None = None,
    tail_stop: int = 0,
) -> Match:
    """Follow the segments of `table` down from `root` as far as KV is cached.

    allow_shift   nodes on the device count wherever they were computed; others only at the
                  position wanted
    any_position  all do, and what is public does not; for whoever asks what is cached, not what
                  can be used
    num_tiers     tiers below the device that count, from the fastest on; None: all of the tree
    tail_stop     index up to which the tail counts, where all of the context matched; what is found
                  of it comes last. 0 leaves the tail out

    Splits a node where the match ends inside it. Where segments begin alike, a node may be found
    twice. What a segment is hidden behind is passed on the way down, and in no list. O(segments +
    matched nodes).
    """
    matcher = _Matcher(tree, table, allow_shift, any_position, tree.tiers.names[:num_tiers])
    found = matcher.match(root)
    public = None if any_position else tree.public_root(root)
    if public is not None and min(own := _states(table, found), default=ON_DEVICE) < ON_DEVICE:
        others = matcher.match(public)
        chosen = choose_public(table, own, _states(table, others))
        if chosen is not None:
            found = _take(table, found, others, chosen)
    start = table.task_start
    if tail_stop > start and table.tail_key and table.is_whole(found.matched):
        above = table.tail_root(tree, root)
        assert above is not None
        end, at = matcher.descend(found, above, start, tail_stop, int(table.positions[start]))
        if at > start:
            found.tail_end = end
    return found


@dataclass(frozen=True, slots=True)
class _Matcher:
    """Follows a prompt down a tree; the fields are as for `match_segments`.

    names  of the tiers that count
    """

    tree: KVTree
    table: SegmentTable
    allow_shift: bool
    any_position: bool
    names: Sequence[str]

    def match(self, root: Node) -> Match:
        """What is found of the segments below one root."""
        num_nodes = self.tree.num_nodes
        found = self._match_once(root)
        if self.table.has_twins and self.tree.num_nodes > num_nodes:
            # A later segment may have split a node that an earlier one had found whole. Now every
            # node is cut where one of them ends.
            found = self._match_once(root)
        return found

    def _match_once(self, root: Node) -> Match:
        tree, table = self.tree, self.table
        found = Match.empty(table.num_segments, len(self.names))
        complete = [False] * table.num_segments
        for segment, (start, stop, parent, position) in enumerate(
            zip(table.starts, table.stops, table.parents, table.placed, strict=True)
        ):
            if parent < 0:
                node = table.root_of(tree, root, segment)
            elif complete[parent]:
                node = found.ends[parent]
                assert node is not None
            else:
                continue
            if (hidden := table.hidden.get(segment)) is not None:
                path, num_found = tree.walk(node, hidden, only_resident=not self.any_position)
                if num_found * TOKEN_BYTES < len(hidden):
                    continue
                node = path[-1]
            node, at = self.descend(found, node, start, stop, position)
            if at > start:
                found.ends[segment] = node
                found.matched[segment] = at - start
                complete[segment] = at == stop
        return found

    def descend(
        self, found: Match, node: Node, start: int, stop: int, position: int
    ) -> tuple[Node, int]:
        """From `node` down the tokens [start, stop); the deepest node, and where it ends.

        found  gets the nodes on the way
        """
        tokens, key = self.table.tokens, self.table.key
        at = start
        while at < stop:
            child = node.children.get(tokens[at])
            if child is None:
                break
            is_resident = child.slots is not None
            tier = -1 if is_resident else fastest(child, self.names)
            if tier is None:
                break
            end = at + child.num_tokens
            is_placed = child.home == position + at - start
            if not (is_placed or self.any_position or (self.allow_shift and is_resident)):
                break
            if end > stop or key[at * TOKEN_BYTES : end * TOKEN_BYTES] != child.key:
                size = common_prefix_tokens(child.key, key[at * TOKEN_BYTES : stop * TOKEN_BYTES])
                child = self.tree.split(child, size)
                end = at + size
            if is_resident:
                found.nodes.append(child)
                found.starts.append(at)
                found.placed.append(position + at - start)
            else:
                found.in_tiers[tier].append(child)
                found.tier_starts[tier].append(at)
            node = child
            at = end
        # A split ends the run: the remainder has no child with the next token, or it is
        # at `stop`, so the loop above needs no further test.
        return node, at


def _states(table: SegmentTable, found: Match) -> list[int]:
    """How much of each segment was found, see `choose_public`."""
    states = [
        ON_DEVICE if matched == stop - start else NOT_WHOLE
        for matched, start, stop in zip(found.matched, table.starts, table.stops, strict=True)
    ]
    for start in chain.from_iterable(found.tier_starts):
        segment = bisect_right(table.starts, start) - 1
        states[segment] = min(states[segment], BELOW)
    return states


def _take(table: SegmentTable, own: Match, public: Match, is_public: list[bool]) -> Match:
    """What was found of each segment by one of two matches."""
    taken = Match.empty(len(is_public), len(own.in_tiers))
    taken.is_mixed = True
    for segment, is_theirs in enumerate(is_public):
        source = public if is_theirs else own
        taken.ends[segment] = source.ends[segment]
        taken.matched[segment] = source.matched[segment]
    taken.starts, taken.nodes, taken.placed = _pick(
        table,
        is_public,
        zip(own.starts, own.nodes, own.placed, strict=True),
        zip(public.starts, public.nodes, public.placed, strict=True),
    )
    for tier in range(len(own.in_tiers)):
        taken.tier_starts[tier], taken.in_tiers[tier] = _pick(
            table,
            is_public,
            zip(own.tier_starts[tier], own.in_tiers[tier], strict=True),
            zip(public.tier_starts[tier], public.in_tiers[tier], strict=True),
            num_columns=2,
        )
    return taken


def _pick(
    table: SegmentTable,
    is_public: list[bool],
    own: Iterable[tuple[Any, ...]],
    public: Iterable[tuple[Any, ...]],
    num_columns: int = 3,
) -> list[list[Any]]:
    """Rows of either by the segment that their first column, an index, lies in, as columns."""
    rows = [
        row
        for is_theirs, source in ((False, own), (True, public))
        for row in source
        if is_public[bisect_right(table.starts, row[0]) - 1] is is_theirs
    ]
    rows.sort(key=itemgetter(0))
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(num_columns)]


def fastest(node: Node, names: Sequence[str]) -> int | None:
    """Returns the place in `names` of the first tier that has a copy of `node`; None: no one."""
    for number, name in enumerate(names):
        if name in node.copies:
            return number
    return None
