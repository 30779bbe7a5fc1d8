# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a prompt are cached, and in which tier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from depcache.cache.node import TOKEN_BYTES, Node, common_prefix_tokens
from depcache.cache.tree import KVTree
from depcache.plan.segments import SegmentTable

Tier = Literal["device", "host", "disk"]


@dataclass(slots=True, eq=False)
class Match:
    """What of a prompt is cached, and where.

    nodes    resident nodes, parents before children, with the prompt index (`starts`) and the
             position (`placed`) of the first token of each
    in_host  nodes whose KV is in host memory, with `host_starts`
    on_disk  nodes whose KV is on disk only
    ends     per segment the deepest matched node, None where nothing matched
    matched  per segment the number of its leading tokens that matched
    """

    nodes: list[Node]
    starts: list[int]
    placed: list[int]
    in_host: list[Node]
    host_starts: list[int]
    on_disk: list[Node]
    ends: list[Node | None]
    matched: list[int]


def match_segments(
    tree: KVTree,
    root: Node,
    table: SegmentTable,
    *,
    allow_shift: bool = True,
    any_position: bool = False,
    lowest: Tier = "disk",
) -> Match:
    """Follow the segments of `table` down from `root` as far as KV is cached.

    allow_shift   nodes on the device count wherever they were computed; others only at the
                  position wanted
    any_position  all do; for whoever asks what is cached, not what can be used
    lowest        the lowest tier that counts

    Splits a node where the match ends inside it. O(segments + matched nodes).
    """
    tokens, key = table.tokens, table.key
    num_segments = len(table.starts)
    found = Match([], [], [], [], [], [], [None] * num_segments, [0] * num_segments)
    use_host, use_disk = lowest != "device", lowest == "disk"
    complete = [False] * num_segments
    for segment, (start, stop, parent, position) in enumerate(
        zip(table.starts, table.stops, table.parents, table.placed, strict=True)
    ):
        if parent < 0:
            node = root
        elif complete[parent]:
            node = found.ends[parent]
            assert node is not None
        else:
            continue
        at = start
        while at < stop:
            child = node.children.get(tokens[at])
            if child is None:
                break
            is_resident = child.slots is not None
            in_host = use_host and child.host is not None
            if not (is_resident or in_host or (use_disk and child.disk is not None)):
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
            elif in_host:
                found.in_host.append(child)
                found.host_starts.append(at)
            else:
                found.on_disk.append(child)
            node = child
            at = end
        # A split ends the run: the remainder has no child with the next token, or it is
        # at `stop`, so the loop above needs no further test.
        if at > start:
            found.ends[segment] = node
            found.matched[segment] = at - start
            complete[segment] = at == stop
    return found
