# SPDX-License-Identifier: Apache-2.0
"""Small requests for orders of the waiting queue, and a run of all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from depcache.cache import KVTree
from depcache.plan import SegmentTable
from depcache.plan.schedule import MAX_PASSED, Scheduler
from depcache.prompt.forest import Forest
from tests.helpers.insertion import cache_context

NAMESPACE = "n"


def table_of(*entities: int, size: int = 10) -> SegmentTable:
    """A system of 5 tokens and a tree of `size` tokens for each entity."""
    runs = [[100 * entity + i for i in range(size)] for entity in entities]
    tokens = [1, 2, 3, 4, 5, *(token for run in runs for token in run), 9]
    forest = Forest.make(len(tokens), 5, [size] * len(runs), [-1] * len(runs))
    return SegmentTable.make(np.array(tokens, np.int64), forest, "tree")


def run_all(
    order: type[Scheduler], tables: Sequence[SegmentTable], max_passed: int = MAX_PASSED
) -> list[int]:
    """All of them wait from the start; the order in which they run."""
    tree = KVTree()
    scheduler = order(tree, max_passed=max_passed)
    for number, table in enumerate(tables):
        scheduler.enter(number, NAMESPACE, table)
    ran: list[int] = []
    while len(scheduler):
        number = scheduler.order()[0]
        assert isinstance(number, int)
        cache_context(tree, NAMESPACE, tables[number])
        scheduler.start(number)
        scheduler.finish(number)
        ran.append(number)
    return ran
