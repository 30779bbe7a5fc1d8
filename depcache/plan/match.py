# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a prompt are cached, and in which tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from depcache.cache.node import Node
from depcache.cache.radix import TOKEN_BYTES, common_prefix_tokens
from depcache.cache.tree import KVTree
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
    """

    nodes: list[Node]
    starts: list[int]
    placed: list[int]
    in_tiers: list[list[Node]]
    tier_starts: list[list[int]]
    ends: list[Node | None]
    matched: list[int]
    tail_end: Node | None = None

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
    any_position  all do; for whoever asks what is cached, not what can be used
    num_tiers     tiers below the device that count, from the fastest on; None: all of the tree
    tail_stop     index up to which the tail counts, where all of the context matched; what is found
                  of it comes last. 0 leaves the tail out

    Splits a node where the match ends inside it. Where segments begin alike, a node may be found
    twice. What a segment is hidden behind is passed on the way down, and in no list. O(segments +
    matched nodes).
    """
    options = allow_shift, any_position, num_tiers, tail_stop
    num_nodes = tree.num_nodes
    found = _match(tree, root, table, *options)
    if table.has_twins and tree.num_nodes > num_nodes:
        # A later segment may have split a node that an earlier one had found whole. Now every
        # node is cut where one of them ends.
        found = _match(tree, root, table, *options)
    return found


def _match(
    tree: KVTree,
    root: Node,
    table: SegmentTable,
    allow_shift: bool,
    any_position: bool,
    num_tiers: int | None,
    tail_stop: int,
) -> Match:
    tokens, key = table.tokens, table.key
    num_segments = len(table.starts)
    names = tree.tiers.names[:num_tiers]
    in_tiers: list[list[Node]] = [[] for _ in names]
    tier_starts: list[list[int]] = [[] for _ in names]
    found = Match([], [], [], in_tiers, tier_starts, [None] * num_segments, [0] * num_segments)

    def descend(node: Node, start: int, stop: int, position: int) -> tuple[Node, int]:
        """From `node` down the tokens [start, stop); the deepest node, and where it ends."""
        at = start
        while at < stop:
            child = node.children.get(tokens[at])
            if child is None:
                break
            is_resident = child.slots is not None
            tier = -1 if is_resident else fastest(child, names)
            if tier is None:
                break
            end = at + child.num_tokens
            is_placed = child.home == position + at - start
            if not (is_placed or any_position or (allow_shift and is_resident)):
                break
            if end > stop or key[at * TOKEN_BYTES : end * TOKEN_BYTES] != child.key:
                size = common_prefix_tokens(child.key, key[at * TOKEN_BYTES : stop * TOKEN_BYTES])
                child = tree.split(child, size)
                end = at + size
            if is_resident:
                found.nodes.append(child)
                found.starts.append(at)
                found.placed.append(position + at - start)
            else:
                in_tiers[tier].append(child)
                tier_starts[tier].append(at)
            node = child
            at = end
        # A split ends the run: the remainder has no child with the next token, or it is
        # at `stop`, so the loop above needs no further test.
        return node, at

    complete = [False] * num_segments
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
            path, num_found = tree.walk(node, hidden, only_resident=not any_position)
            if num_found * TOKEN_BYTES < len(hidden):
                continue
            node = path[-1]
        node, at = descend(node, start, stop, position)
        if at > start:
            found.ends[segment] = node
            found.matched[segment] = at - start
            complete[segment] = at == stop
    start = table.task_start
    if tail_stop > start and all(complete) and table.tail_key:
        above = table.tail_root(tree, root)
        assert above is not None
        end, at = descend(above, start, tail_stop, int(table.positions[start]))
        if at > start:
            found.tail_end = end
    return found


def fastest(node: Node, names: Sequence[str]) -> int | None:
    """Returns the place in `names` of the first tier that has a copy of `node`; None: no one."""
    for number, name in enumerate(names):
        if name in node.copies:
            return number
    return None
