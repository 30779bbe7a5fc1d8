# SPDX-License-Identifier: Apache-2.0
"""How what a fused request computes again gets into the tree, row by row."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from depcache.cache.node import Node
from depcache.cache.radix import TOKEN_BYTES
from depcache.cache.tree import KVTree
from depcache.plan.insertion import ContextInsertion, Duplicate, Offer
from depcache.plan.patch_match import Patch
from depcache.plan.request import RequestPlan
from depcache.plan.segments import SegmentTable


class PatchInsertion(ContextInsertion):
    """The same for a fused request, none of whose rows belongs below its context.

    A patch hangs behind the nodes of its row (`KVTree.hang`), so it leaves before them, and is
    given up with them.
    """

    def __init__(
        self,
        tree: KVTree,
        namespace: Hashable,
        table: SegmentTable,
        plan: RequestPlan,
        *,
        num_computed: int,
    ) -> None:
        super().__init__(tree, namespace, table, plan, num_computed=num_computed)
        self._left = [patch for patch in plan.patches if len(patch.wanted)][::-1]
        # Computed rows of the context are in prompt order.
        self._computed = plan.order[plan.num_hits : plan.num_context]

    @property
    def next_row(self) -> int | None:
        """The last row of the first patch that is still to be offered; None when there is none."""
        return self._rows(self._left[-1]).stop - 1 if self._left else None

    def _rows(self, patch: Patch) -> range:
        # No token of the context up to there is missing, so these rows follow one by one.
        first = int(np.searchsorted(self._computed, patch.wanted[0])) + self._plan.num_hits
        return range(first, first + len(patch.wanted))

    def offer(self, num_rows: int, slots: np.ndarray) -> Offer:
        """Insert the patches whose rows are all among the first `num_rows`.

        slots  (num_rows,) of these rows
        """
        offer = Offer([], [])
        while (last := self.next_row) is not None and last < num_rows:
            patch = self._left.pop()
            rows = self._rows(patch)
            own = slots[rows.start : rows.stop]
            inserted = self._tree.insert(
                self._above(patch),
                patch.of.key[patch.num_found * TOKEN_BYTES :],
                own,
                int(patch.wanted[0]),
                num_cached=self._plan.num_hits,
                num_computed=self._num_computed,
            )
            if inserted.num_present:
                present = own[: inserted.num_present]
                offer.duplicates.append(Duplicate(rows.start, present, inserted.present_slots))
            self._tree.lock([inserted.node])
            offer.taken.append(inserted.node)
            self.owned[rows.start : rows.stop] = True
        return offer

    def _above(self, patch: Patch) -> Node:
        if patch.nodes:
            return patch.nodes[-1]
        root = self._tree.root(self._namespace, patch.of.behind)
        above = set(self._table.parents)
        leaves = [self._plan.ends[each] for each in patch.of.segments if each not in above]
        self._tree.hang(root, [end for end in leaves if end is not None])
        return root
