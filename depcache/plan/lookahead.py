# SPDX-License-Identifier: Apache-2.0
"""What the waiting queue will use: each waiting request is written on the nodes it needs.

A node that is wanted and not cached is kept without KV, so that it is known as wanted from
the moment its KV is computed. Costs are those of the change: a request that enters or leaves
touches its own nodes, a new order one number per request; no node is scanned
(DepCache paper, sections 4.2.2 and 5).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from depcache.cache.node import Node
from depcache.cache.radix import TOKEN_BYTES
from depcache.cache.tree import KVTree
from depcache.plan.segments import SegmentTable
from depcache.plan.tail_key import MIN_TAIL_TOKENS


class Lookahead:
    """The waiting requests of one tree; keeps `KVTree.rank`, the place of each in the queue."""

    def __init__(self, tree: KVTree) -> None:
        self.tree = tree
        self._wanted: dict[Hashable, list[Node]] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def __contains__(self, waiter: Hashable) -> bool:
        return waiter in self._wanted

    def clear(self) -> None:
        """Forget all requests; for a tree that was reset."""
        self.tree.rank.clear()
        self._wanted.clear()

    def enter(self, waiter: Hashable, namespace: Hashable, table: SegmentTable) -> None:
        """`waiter` will use `table`, its tail included; it takes the last place in the queue.

        O(segments). A waiter that is in already keeps its place.
        """
        if waiter in self._wanted:
            return
        tree = self.tree
        root = tree.root(namespace)
        wanted: list[Node] = []

        def want(above: Node, key: bytes, position: int) -> Node:
            path = tree.grow(above, key, position)
            # At once: the next run may split these, and both halves then have the waiter.
            for node in path:
                if node.waiters is None:
                    node.waiters = {waiter: None}
                else:
                    node.waiters[waiter] = None
            wanted.extend(path)
            return path[-1]

        # What is public is wanted as well: which of the two will be read is not known yet.
        for read in filter(None, (root, tree.public_root(root))):
            ends: list[Node] = []
            for segment, (start, stop, parent, position) in enumerate(
                zip(table.starts, table.stops, table.parents, table.placed, strict=True)
            ):
                above = table.root_of(tree, read, segment) if parent < 0 else ends[parent]
                if (hidden := table.hidden.get(segment)) is not None:
                    above = want(above, hidden, above.home + above.num_tokens)
                key = table.key[start * TOKEN_BYTES : stop * TOKEN_BYTES]
                ends.append(want(above, key, position))
        start, stop = table.task_start, table.num_tokens
        tail = table.tail_root(tree, root)
        if tail is not None and stop - start >= MIN_TAIL_TOKENS:
            key = table.key[start * TOKEN_BYTES : stop * TOKEN_BYTES]
            want(tail, key, int(table.positions[start]))
        self._wanted[waiter] = wanted
        tree.rank[waiter] = len(tree.rank)

    def leave(self, waiter: Hashable, *, is_running: bool = False) -> None:
        """`waiter` runs or is gone. O(its nodes); unknown waiters are ignored.

        is_running  it is about to lock all of these nodes that are resident; what they are
                    worth without it is asked when it unlocks them
        """
        wanted = self._wanted.pop(waiter, None)
        if wanted is None:
            return
        tree = self.tree
        del tree.rank[waiter]
        for node in wanted:
            # Splits put nodes above those that were marked; the way up meets them all once.
            marked: Node | None = node
            while marked is not None and marked.waiters and waiter in marked.waiters:
                above = marked.parent
                del marked.waiters[waiter]
                marked.waiters = marked.waiters or None
                if marked.slots is None:
                    tree.prune(marked)
                elif not is_running:
                    tree.offer(marked)
                tree.tiers.offer(marked)
                marked = above

    def set_order(self, waiters: Iterable[Hashable]) -> None:
        """The queue's order; waiters that never entered are counted and otherwise ignored."""
        wanted, rank = self._wanted, self.tree.rank
        rank.clear()
        for waiter in waiters:
            if waiter in wanted:
                rank[waiter] = len(rank)
        for waiter in wanted:
            rank.setdefault(waiter, len(rank))
