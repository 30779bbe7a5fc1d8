# SPDX-License-Identifier: Apache-2.0
"""A tree that takes prompts as a server gives them to it, all rows at once."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from depcache.cache import KVTree
from depcache.plan import ContextInsertion, RequestPlan, SegmentTable, plan_request


def cache_context(
    tree: KVTree, namespace: Hashable, table: SegmentTable, *, first_slot: int = 0
) -> RequestPlan:
    """Cache what a prompt misses, in slots from `first_slot` on; the plan it was computed by."""
    plan = plan_request(tree, tree.root(namespace), table)
    insertion = ContextInsertion(tree, namespace, table, plan, num_computed=0)
    slots = np.zeros(plan.num_context, np.int64)
    slots[plan.num_hits :] = first_slot + np.arange(plan.num_missed)
    tree.unlock(insertion.offer(plan.num_context, slots).taken)
    return plan
