# SPDX-License-Identifier: Apache-2.0
"""Orders that only the simulator knows: by hand, and against a count of everything."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.cache import KVTree
from depcache.plan import plan_request
from depcache.plan.schedule import Scheduler
from eval.policy.orders import AgedDependencyMatch, LongestDependencyMatch
from tests.depcache.plan.test_segments import make_table
from tests.helpers.insertion import cache_context
from tests.helpers.orders import NAMESPACE, run_all, table_of
from tests.helpers.prompts import TreePrompt
from tests.helpers.strategies import prompts

tree_prompts = prompts(st.just("tree"))


def test_longest_dependency_match_takes_what_is_cached_most() -> None:
    tables = [table_of(1), table_of(2, 3), table_of(1, 2), table_of(4), table_of(3, 2, 1)]
    # All are cold: the first. Then 2 has entity 1 (so has 4, which came later), then 1 or 4.
    assert run_all(LongestDependencyMatch, tables) == [0, 2, 4, 1, 3]


def test_aged_match_takes_the_largest_share_that_is_cached_and_age_outweighs_it() -> None:
    tables = [table_of(1), table_of(2), table_of(1, 3), table_of(1), table_of(4, 1, 5)]
    # After 0: 3 is cached whole, 2 by 15 of 25 tokens, 4 by 15 of 35, 1 has its system only.
    assert run_all(AgedDependencyMatch, tables) == [0, 3, 2, 4, 1]
    # Two of four passes are worth half: 5 of 15 and 1/2 are more than 15 of 35 tokens.
    assert run_all(AgedDependencyMatch, tables, max_passed=4) == [0, 3, 2, 1, 4]


@pytest.mark.parametrize("order", [LongestDependencyMatch, AgedDependencyMatch])
@settings(max_examples=100, deadline=None)
@given(
    waiting=st.lists(tree_prompts, min_size=1, max_size=10),
    evicted=st.lists(st.integers(0, 12), max_size=10),
)
def test_the_front_is_what_counting_everything_would_take(
    order: type[Scheduler], waiting: list[TreePrompt], evicted: list[int]
) -> None:
    tree = KVTree()
    scheduler = order(tree, max_passed=1000)
    passed = dict.fromkeys(range(len(waiting)), 0)
    tables = dict(enumerate(map(make_table, waiting)))
    for number, table in tables.items():
        scheduler.enter(number, NAMESPACE, table)
    evicted = evicted + [0] * len(tables)
    while tables:
        worth: dict[int, float] = {}
        for number, table in tables.items():
            worth[number] = plan_request(tree, tree.root(NAMESPACE), table).num_hits
            if order is AgedDependencyMatch:
                share = worth[number] / max(1, table.task_start)
                worth[number] = share + passed[number] / 1000
        best = max(worth, key=lambda number: (worth[number], -number))
        for number in tables:
            passed[number] += number < best
        assert scheduler.order()[0] == best
        cache_context(tree, NAMESPACE, tables.pop(best))
        scheduler.start(best)
        scheduler.finish(best)
        tree.tiers.evict(tree, evicted.pop(0))
