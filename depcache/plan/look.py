# SPDX-License-Identifier: Apache-2.0
"""What `match_segments` would find, told without touching the tree.

A match splits the nodes that it ends in, because a request is about to use one part of them.
Whoever only asks must leave nothing behind: not a node more, however often they ask.
"""

from __future__ import annotations

from dataclasses import dataclass

from depcache.cache.node import TOKEN_BYTES, Node, common_prefix_tokens
from depcache.plan.match import Tier
from depcache.plan.segments import SegmentTable


@dataclass(slots=True, eq=False)
class Look:
    """Tokens of a prompt by where their KV is.

    matched    per segment the number of its leading tokens that are cached
    shared     on the device, at the position wanted
    shifted    on the device, at another position
    in_host, on_disk   there and no faster
    host_nodes, disk_nodes   the nodes of these, whole: the prompt may end inside the last of a way
    """

    matched: list[int]
    shared: int
    shifted: int
    in_host: int
    on_disk: int
    host_nodes: list[Node]
    disk_nodes: list[Node]

    @property
    def num_cached(self) -> int:
        """All of them."""
        return self.shared + self.shifted + self.in_host + self.on_disk


def look_up(root: Node, table: SegmentTable, *, lowest: Tier = "disk") -> Look:
    """Follow the segments of `table` down from `root` as far as KV is cached.

    lowest  the lowest tier that counts. As for `match_segments`, what is on the device counts
            wherever it was computed, what is below only at the position wanted

    O(segments + matched nodes).
    """
    tokens, key = table.tokens, table.key
    use_host, use_disk = lowest != "device", lowest == "disk"
    found = Look([], 0, 0, 0, 0, [], [])
    # Where each segment ended: a node and the tokens used of it; None if it did not match whole.
    ends: list[tuple[Node, int] | None] = []
    for start, stop, parent, position in zip(
        table.starts, table.stops, table.parents, table.placed, strict=True
    ):
        above = (root, root.num_tokens) if parent < 0 else ends[parent]
        if above is None:
            found.matched.append(0)
            ends.append(None)
            continue
        node, used = above
        at = start
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
            elif is_placed and use_host and node.host is not None:
                found.in_host += size
                if not (found.host_nodes and found.host_nodes[-1] is node):
                    found.host_nodes.append(node)
            elif is_placed and use_disk and node.disk is not None:
                found.on_disk += size
                if not (found.disk_nodes and found.disk_nodes[-1] is node):
                    found.disk_nodes.append(node)
            else:
                break
            at, used = at + size, used + size
            if at < end:
                break
        found.matched.append(at - start)
        ends.append((node, used) if at == stop else None)
    return found
