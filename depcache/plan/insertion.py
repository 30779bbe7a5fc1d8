# SPDX-License-Identifier: Apache-2.0
"""How what a request computes gets into the tree, run by run, while it is being computed.

Pure: rows and slots are numbers. The server offers the rows of its forward passes, the policy
simulator those of a prompt at once, and both learn what the tree took.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from depcache.cache.node import Node
from depcache.cache.radix import TOKEN_BYTES
from depcache.cache.tree import KVTree
from depcache.plan.request import RequestPlan
from depcache.plan.rows import RowKind, Runs
from depcache.plan.segments import SegmentTable


@dataclass(frozen=True, slots=True, eq=False)
class Duplicate:
    """Rows whose tokens somebody else cached meanwhile: use the tree's slots, free the others.

    row     the first of them
    own     (n,) int64 the offered slots
    cached  (n,) int64 the tree's
    """

    row: int
    own: np.ndarray
    cached: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """What became of the offered rows.

    taken       nodes that hold them now, locked for the request
    duplicates  rows whose slots were not needed
    """

    taken: list[Node]
    duplicates: list[Duplicate]


class ContextInsertion:
    """The context of one running request on its way into the tree.

    owned  (num_tokens,) bool by row: the slot belongs to the tree. It does not from the start
           for rows that are still to be loaded; see `own_loaded`.

    The path to every cached token is cached too, so a run that cannot be inserted keeps all that
    hangs below it out. Those rows stay with the request.
    """

    def __init__(
        self,
        tree: KVTree,
        namespace: Hashable,
        table: SegmentTable,
        plan: RequestPlan,
        *,
        num_computed: int,
        is_exact: bool = True,
    ) -> None:
        """Start behind what `plan` found.

        num_computed  tokens the request computes, the task included; eviction policies weigh it
        is_exact      False where KV of the same tokens differs with what the request before had
                      around them: then nothing that somebody else computed is a duplicate
        """
        self._tree = tree
        self._namespace = namespace
        self._table = table
        self._plan = plan
        self._num_computed = num_computed
        self._is_exact = is_exact
        self._ends = list(plan.ends)
        # The index up to which the tokens of a segment are in the tree.
        self._reached = [
            start + matched for start, matched in zip(table.starts, plan.matched, strict=True)
        ]
        self._next = 0  # run
        self._num_done = 0  # rows of it
        self.owned = plan.rows.kind == RowKind.SHARED

    @cached_property
    def _runs(self) -> Runs:
        """Cut when the first rows are computed: a request that waits is planned on every pass."""
        return self._plan.rows.runs(self._table)

    @property
    def context_ends(self) -> list[Node] | None:
        """The nodes that the context ends in; None until all of it is in the tree."""
        reached = zip(self._reached, self._table.stops, strict=True)
        if self._next < len(self._runs) or any(at < stop for at, stop in reached):
            return None
        return self._table.leaf_ends(self._ends)

    @property
    def next_row(self) -> int | None:
        """The first row that is still to be offered; None when there is none."""
        if self._next == len(self._runs):
            return None
        return self._runs.rows[self._next] + self._num_done

    def own_loaded(self) -> None:
        """The rows that come from host memory have their slots, and these are the tree's."""
        self.owned |= self._plan.rows.kind == RowKind.LOADED

    def offer(self, num_rows: int, slots: np.ndarray) -> Offer:
        """Insert what is computed: the rows [0, num_rows), whose slots are `slots` (num_rows,).

        Rows that were offered before are passed over. Locks every node it returns.
        """
        runs = self._runs
        offer = Offer([], [])
        # Not kept from offer to offer: a root without children is forgotten by the tree.
        root = self._tree.root(self._namespace)
        while (first := self.next_row) is not None and first < num_rows:
            run, done = self._next, self._num_done
            num_left = runs.sizes[run] - done
            num_new = min(num_rows - first, num_left)
            if not self._insert(root, run, done, slots[first : first + num_new], offer):
                num_new = num_left
            self._num_done += num_new
            if num_new == num_left:
                self._next, self._num_done = run + 1, 0
        return offer

    def _insert(self, root: Node, run: int, done: int, slots: np.ndarray, offer: Offer) -> bool:
        """Insert so many more tokens of a run; False if the tree cannot have them."""
        table = self._table
        segment, index = self._runs.segments[run], self._runs.indices[run] + done
        first, stop = self._runs.rows[run] + done, index + len(slots)
        parent = table.parents[segment]
        above = self._ends[segment] or (
            table.root_of(self._tree, root, segment) if parent < 0 else self._ends[parent]
        )
        key = table.key[TOKEN_BYTES * index : TOKEN_BYTES * stop]
        home = table.placed[segment] + index - table.starts[segment]
        if (
            above is None
            or index != self._reached[segment]
            or not (self._is_exact or self._is_new(above, key))
        ):
            self._ends[segment] = None
            return False
        inserted = self._tree.insert(
            above,
            key,
            slots,
            home,
            num_cached=self._plan.num_hits,
            num_computed=self._num_computed,
        )
        if inserted.num_present:
            own = slots[: inserted.num_present]
            offer.duplicates.append(Duplicate(first, own, inserted.present_slots))
        self._tree.lock([inserted.node])
        offer.taken.append(inserted.node)
        self._ends[segment] = inserted.node
        self._reached[segment] = stop
        self.owned[first : first + len(slots)] = True
        return True

    def _is_new(self, above: Node, key: bytes) -> bool:
        """Whether the tree has nothing of the run.

        In the layouts that move keys, what it has may stand at another position, or was computed
        below tokens that had been moved. In place of our own it would change the answer; beside
        our own it would take slots that nobody counted when the request was admitted.
        """
        _, num_found = self._tree.walk(above, key)
        return not num_found
