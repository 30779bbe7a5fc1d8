# SPDX-License-Identifier: Apache-2.0
"""How what follows the context gets into the tree: the task, the answer, later turns.

Pure, as `ContextInsertion`. The rows of a tail are its tokens in order, so a number says how far it
got. It goes in when all of the context has, because it hangs behind that.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from depcache.cache.radix import TOKEN_BYTES
from depcache.cache.tree import KVTree
from depcache.plan.insertion import ContextInsertion, Duplicate, Offer
from depcache.plan.request import RequestPlan
from depcache.plan.segments import SegmentTable
from depcache.plan.tail_key import MIN_TAIL_TOKENS


class TailInsertion:
    """The tail of one running request on its way into the tree.

    num_owned  rows of it, from the first, whose slots belong to the tree. Those that are still to
               be loaded do not count; see `own_loaded`
    """

    def __init__(
        self,
        tree: KVTree,
        namespace: Hashable,
        table: SegmentTable,
        plan: RequestPlan,
        context: ContextInsertion,
        *,
        num_computed: int,
    ) -> None:
        """Start behind what `plan` found; `context` is that of the same request.

        num_computed  tokens the request computes; eviction policies weigh it
        """
        self._tree = tree
        self._namespace = namespace
        self._table = table
        self._plan = plan
        self._context = context
        self._num_computed = num_computed
        self._end = plan.tail_end
        self.num_owned = plan.num_tail_shared

    def own_loaded(self) -> None:
        """The rows that come from host memory have their slots, and these are the tree's."""
        self.num_owned += self._plan.num_tail_loaded

    def is_open(self, num_tokens: int) -> bool:
        """Whether the tree may take more of the tail when so many of its tokens are computed."""
        if num_tokens <= self.num_owned or not self._table.tail_key:
            return False
        if self._end is not None:
            return True
        return num_tokens >= MIN_TAIL_TOKENS and self._context.next_row is None

    def offer(self, tail: bytes, slots: np.ndarray) -> Offer:
        """Insert what is computed.

        tail   raw int32 tokens of the tail as far as it is computed, the answer included
        slots  (tokens,) int64, the slot of each

        What was offered before is passed over; a tail that is too short, or whose context is not in
        the tree, waits. Locks every node it returns.
        """
        offer = Offer([], [])
        done, num_tokens = self.num_owned, len(slots)
        if not self.is_open(num_tokens):
            return offer
        above = self._end
        if above is None:
            context = self._context.context_ends
            if context is None:
                return offer
            above = self._tree.root(self._namespace, self._table.tail_key)
            self._tree.hang(above, context)
        start = self._table.task_start
        inserted = self._tree.insert(
            above,
            tail[done * TOKEN_BYTES : num_tokens * TOKEN_BYTES],
            slots[done:],
            int(self._table.positions[start]) + done,
            num_cached=self._plan.num_hits + self._plan.num_tail,
            num_computed=self._num_computed,
        )
        if inserted.num_present:
            own = slots[done : done + inserted.num_present]
            offer.duplicates.append(Duplicate(start + done, own, inserted.present_slots))
        self._tree.lock([inserted.node])
        offer.taken.append(inserted.node)
        self._end = inserted.node
        self.num_owned = num_tokens
        return offer
