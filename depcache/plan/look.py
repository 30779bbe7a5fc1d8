# SPDX-License-Identifier: Apache-2.0
"""What `match_segments` would find, told without touching the tree.

A match splits the nodes that it ends in, because a request is about to use one part of them.
Whoever only asks must leave nothing behind: not a node more, however often they ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from depcache.cache.node import Node
from depcache.cache.radix import TOKEN_BYTES, common_prefix_tokens, first_token
from depcache.cache.tree import KVTree
from depcache.plan.behind_key import read_behind_key
from depcache.plan.match import fastest
from depcache.plan.public import BELOW, NOT_WHOLE, ON_DEVICE, choose_public
from depcache.plan.segments import SegmentTable


@dataclass(slots=True, eq=False)
class Look:
    """Tokens of a prompt by where their KV is.

    matched    per segment the number of its leading tokens that are cached
    by_segment  the same in three parts: shared, shifted, in a lower tier
    shared     on the device, at the position wanted
    shifted    on the device, at another position
    in_tiers   per tier below the device, the fastest first: there and in none that is faster
    tail       those that follow the context, wherever they are; in none of the others
    tier_nodes  the nodes of these, whole and each once: the prompt may end inside the last of a way
    unhidden   segment -> tokens that it is to stand behind, beside the prompt's own, and that are
               not on the device; behind several chunks only where it is not all there itself
    """

    matched: list[int]
    by_segment: list[tuple[int, int, int]]
    shared: int
    shifted: int
    in_tiers: list[int]
    tier_nodes: list[list[Node]]
    tail: int = 0
    unhidden: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def num_cached(self) -> int:
        """All of them that are of the context."""
        return self.shared + self.shifted + sum(self.in_tiers)


def look_up(tree: KVTree, root: Node, table: SegmentTable, *, num_tiers: int | None = None) -> Look:
    """Follow the segments of `table` down from `root` as far as KV is cached.

    num_tiers  tiers below the device that count, from the fastest on; None: all of `tree`. As for
               `match_segments`, what is on the device counts wherever it was computed, what is
               below only at the position wanted, but for a fused request, which settles it first

    O(segments + matched nodes).
    """
    names = tree.tiers.names[:num_tiers]
    found = _look(tree, root, table, names)
    public = tree.public_root(root)
    if public is not None and min(own := _states(table, found), default=ON_DEVICE) < ON_DEVICE:
        others = _look(tree, public, table, names)
        chosen = choose_public(table, own, _states(table, others))
        if chosen is not None:
            found = _look(tree, root, table, names, public, chosen)
    if table.is_whole(found.matched):
        found.tail = _look_at_tail(tree, root, table, names)
    return found


def _states(table: SegmentTable, found: Look) -> list[int]:
    """How much of each segment was found, see `choose_public`."""
    return [
        NOT_WHOLE if matched < stop - start else BELOW if below else ON_DEVICE
        for matched, start, stop, (_, _, below) in zip(
            found.matched, table.starts, table.stops, found.by_segment, strict=True
        )
    ]


def _look(
    tree: KVTree,
    root: Node,
    table: SegmentTable,
    names: Sequence[str],
    public: Node | None = None,
    is_public: Sequence[bool] = (),
) -> Look:
    """Look at the context.

    is_public  segments that are looked up below `public` instead
    """
    tokens, key = table.tokens, table.key
    found = Look([], [], 0, 0, [0] * len(names), [[] for _ in names])
    # Where each segment ended: a node and the tokens used of it; None if it did not match whole.
    ends: list[tuple[Node, int] | None] = []
    for segment, (start, stop, parent, position) in enumerate(
        zip(table.starts, table.stops, table.parents, table.placed, strict=True)
    ):
        read = public if public is not None and is_public[segment] else root
        if parent < 0:
            above = (table.root_of(tree, read, segment), 0)
        elif read is public and not is_public[parent]:
            # Below the system, which is read among the asker's own.
            above, _ = _pass((read, 0), table.path(parent), names)
        else:
            above = ends[parent]
        if (hidden := table.hidden.get(segment)) is not None:
            above, num_found = _pass(above, hidden)
            found.unhidden[segment] = len(hidden) // TOKEN_BYTES - num_found
        if above is None:
            found.matched.append(0)
            found.by_segment.append((0, 0, 0))
            ends.append(None)
            continue
        node, used = above
        at = start
        shared, shifted = found.shared, found.shifted
        while at < stop:
            if used == node.num_tokens:
                child = node.children.get(tokens[at])
                if child is None:
                    break
                node, used = child, 0
            end = min(stop, at + node.num_tokens - used)
            held = node.key[used * TOKEN_BYTES : (used + end - at) * TOKEN_BYTES]
            wanted = key[at * TOKEN_BYTES : end * TOKEN_BYTES]
            size = end - at if held == wanted else common_prefix_tokens(held, wanted)
            if not size:
                break
            is_placed = node.home + used == position + at - start
            if node.slots is not None:
                if is_placed:
                    found.shared += size
                else:
                    found.shifted += size
            else:
                # A fused request brings its rows back where they were computed, before it runs.
                is_usable = is_placed or table.selected is not None
                tier = fastest(node, names) if is_usable else None
                if tier is None:
                    break
                found.in_tiers[tier] += size
                nodes = found.tier_nodes[tier]
                if not (nodes and nodes[-1] is node):
                    nodes.append(node)
            at, used = at + size, used + size
            if at < end:
                break
        found.matched.append(at - start)
        if segment in table.several and at < stop:
            found.unhidden[segment] = _count_missing(tree, root, table, segment)
        shared, shifted = found.shared - shared, found.shifted - shifted
        found.by_segment.append((shared, shifted, at - start - shared - shifted))
        ends.append((node, used) if at == stop else None)
    if table.has_twins:
        found.tier_nodes = [list(dict.fromkeys(nodes)) for nodes in found.tier_nodes]
    return found


def _count_missing(tree: KVTree, root: Node, table: SegmentTable, segment: int) -> int:
    """Tokens of the chunks before a segment that are not on the device."""
    chunks = table.several[segment]
    known = read_behind_key(table.behind[segment])
    assert known is not None
    above, _ = _pass((root, 0), known[0])
    return sum(len(chunk) // TOKEN_BYTES - _pass(above, chunk)[1] for chunk in chunks)


def _pass(
    above: tuple[Node, int] | None, key: bytes, names: Sequence[str] = ()
) -> tuple[tuple[Node, int] | None, int]:
    """Follow `key` as far as it is on the device, or in a tier, from so many tokens of a node on.

    Returns where it ends, None unless all of it is there, and the tokens that are.
    """
    if above is None:
        return None, 0
    node, used = above
    at = 0
    while at < len(key):
        if used == node.num_tokens:
            child = node.children.get(first_token(key[at : at + TOKEN_BYTES]))
            if child is None or (child.slots is None and fastest(child, names) is None):
                break
            node, used = child, 0
        size = common_prefix_tokens(node.key[used * TOKEN_BYTES :], key[at:])
        if not size:
            break
        at, used = at + size * TOKEN_BYTES, used + size
    return (node, used) if at == len(key) else None, at // TOKEN_BYTES


def _look_at_tail(tree: KVTree, root: Node, table: SegmentTable, names: Sequence[str]) -> int:
    """Tokens of the tail that are cached; its last one never counts, because it is computed."""
    node: Node | None = table.tail_root(tree, root)
    at, stop = table.task_start, table.num_tokens - 1
    while node is not None and at < stop:
        node = node.children.get(table.tokens[at])
        if node is None or (node.slots is None and fastest(node, names) is None):
            break
        size = common_prefix_tokens(node.key, table.key[at * TOKEN_BYTES : stop * TOKEN_BYTES])
        at += size
        if size < node.num_tokens:
            break
    return at - table.task_start
