# SPDX-License-Identifier: Apache-2.0
"""Match one dependency prompt against the tree and decide, per token, what to do.

The engine wants one row of KV slots per request, cached rows first. The plan therefore
permutes the prompt (DESIGN: "cached rows are the prefix, missed rows and task the extend"):

    row  0 ........... num_shared ........ + num_shifted ... num_hits ........ num_context ... n
         | shared hits   | shifted hits       | loaded hits  | missed, pre-order | task        |
         | used in place | copied, keys moved | from host    | computed          | computed    |
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from depcache.cache.node import TOKEN_BYTES, Node, common_prefix_tokens, slots_of
from depcache.cache.tree import KVTree
from depcache.plan.segments import SegmentTable


@dataclass(frozen=True, slots=True, eq=False)
class ShiftedRows:
    """Hits whose keys must move: copy `slots` and rotate from `home` to `placed` (int64 each)."""

    slots: np.ndarray
    home: np.ndarray
    placed: np.ndarray

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True, eq=False)
class RequestPlan:
    """The decision for one request, valid while the tree's version is `version`.

    order         (num_tokens,) int64: row -> index (pre-order) of the prompt
    num_shared    rows [0, num_shared) are used in place
    shared_slots  (num_shared,) int64 their slots
    shifted       the next len(shifted) rows
    loaded        nodes whose KV is in host memory, parents before children: the rows behind
    num_loaded    their tokens
    nodes         matched resident nodes, parents before children: lock them while it runs
    ends          per segment the deepest matched node, None where nothing matched
    matched       per segment the number of its leading tokens that matched
    num_locked    tokens of `nodes`: what they keep from eviction
    """

    version: int
    order: np.ndarray
    num_shared: int
    shared_slots: np.ndarray
    shifted: ShiftedRows
    loaded: list[Node] = field(repr=False)
    num_loaded: int
    nodes: list[Node] = field(repr=False)
    ends: list[Node | None] = field(repr=False)
    matched: list[int] = field(repr=False)
    num_context: int
    num_locked: int

    @property
    def num_shifted(self) -> int:
        return len(self.shifted)

    @property
    def num_hits(self) -> int:
        return self.num_shared + len(self.shifted) + self.num_loaded

    @property
    def num_missed(self) -> int:
        """Context tokens (the system included) that must be computed."""
        return self.num_context - self.num_hits


def plan_request(
    tree: KVTree,
    root: Node,
    table: SegmentTable,
    *,
    allow_shift: bool = True,
    allow_load: bool = True,
) -> RequestPlan:
    """Match `table` below `root` and order its rows.

    allow_shift  False: a cached run at another position is computed again, not moved
    allow_load   False: what is not on the device is computed again, not loaded. A copy in host
                 memory is loaded only where it was computed at the position wanted

    Splits a node where a match ends inside it; changes nothing else (hits are counted with
    `KVTree.touch` when the request runs). O(segments + matched nodes) Python, the rest numpy.
    """
    nodes, starts, placed, ends, matched, loaded, loaded_starts = _match(
        tree, root, table, allow_shift, allow_load
    )
    num_context = table.task_start
    sizes = np.array([node.num_tokens for node in nodes], np.int64)
    index = _expand(np.array(starts, np.int64), sizes)
    slots = slots_of(nodes)
    home = np.array([node.home for node in nodes], np.int64)
    wanted = np.array(placed, np.int64)

    loaded_index = _expand(
        np.array(loaded_starts, np.int64), np.array([node.num_tokens for node in loaded], np.int64)
    )
    is_miss = np.ones(table.num_tokens, bool)
    is_miss[index] = False
    is_miss[loaded_index] = False
    missed = np.flatnonzero(is_miss)
    moved = np.repeat(home != wanted, sizes)
    if moved.any():
        kept = ~moved
        shifted = ShiftedRows(
            slots=slots[moved],
            home=_expand(home, sizes)[moved],
            placed=table.positions[index[moved]],
        )
        order = np.concatenate((index[kept], index[moved], loaded_index, missed))
        slots = slots[kept]
    else:
        empty = np.empty(0, np.int64)
        shifted = ShiftedRows(empty, empty, empty)
        order = np.concatenate((index, loaded_index, missed))
    return RequestPlan(
        version=tree.version,
        order=order,
        num_shared=len(slots),
        shared_slots=slots,
        shifted=shifted,
        loaded=loaded,
        num_loaded=len(loaded_index),
        nodes=nodes,
        ends=ends,
        matched=matched,
        num_context=num_context,
        num_locked=int(sizes.sum()),
    )


def _expand(firsts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Concatenate the ranges [first, first + size): int64 (sum of sizes,)."""
    stops = np.cumsum(sizes)
    total = int(stops[-1]) if len(stops) else 0
    return np.arange(total) + np.repeat(firsts - (stops - sizes), sizes)


def _match(
    tree: KVTree, root: Node, table: SegmentTable, allow_shift: bool, allow_load: bool
) -> tuple[list[Node], list[int], list[int], list[Node | None], list[int], list[Node], list[int]]:
    """Matched nodes with the index and the position of their first token; see RequestPlan.

    Those to load come last, with their index.
    """
    tokens, key = table.tokens, table.key
    num_segments = len(table.starts)
    nodes: list[Node] = []
    starts: list[int] = []
    placed: list[int] = []
    ends: list[Node | None] = [None] * num_segments
    matched = [0] * num_segments
    loaded: list[Node] = []
    loaded_starts: list[int] = []
    complete = [False] * num_segments
    for segment, (start, stop, parent, position) in enumerate(
        zip(table.starts, table.stops, table.parents, table.placed, strict=True)
    ):
        if parent < 0:
            node = root
        elif complete[parent]:
            node = ends[parent]
            assert node is not None
        else:
            continue
        at = start
        while at < stop:
            child = node.children.get(tokens[at])
            if child is None:
                break
            is_resident = child.slots is not None
            if not is_resident and (child.host is None or not allow_load):
                break
            end = at + child.num_tokens
            if child.home != position + at - start and not (allow_shift and is_resident):
                break
            if end > stop or key[at * TOKEN_BYTES : end * TOKEN_BYTES] != child.key:
                size = common_prefix_tokens(child.key, key[at * TOKEN_BYTES : stop * TOKEN_BYTES])
                child = tree.split(child, size)
                end = at + size
            if is_resident:
                nodes.append(child)
                starts.append(at)
                placed.append(position + at - start)
            else:
                loaded.append(child)
                loaded_starts.append(at)
            node = child
            at = end
        # A split ends the run: the remainder has no child with the next token, or it is
        # at `stop`, so the loop above needs no further test.
        if at > start:
            ends[segment] = node
            matched[segment] = at - start
            complete[segment] = at == stop
    return nodes, starts, placed, ends, matched, loaded, loaded_starts
