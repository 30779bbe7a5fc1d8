# SPDX-License-Identifier: Apache-2.0
"""Schedulers: their order by hand and against a count of everything, and who waits how long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.cache import KVTree
from depcache.errors import ConfigError
from depcache.plan import SegmentTable, plan_request
from depcache.plan.schedule import SCHEDULERS, make_scheduler
from depcache.prompt.forest import Forest
from tests.depcache.plan.test_segments import make_table
from tests.helpers.insertion import cache_context
from tests.helpers.prompts import TreePrompt
from tests.helpers.strategies import prompts

NAMESPACE = "n"
tree_prompts = prompts(st.just("tree"))


def table_of(*entities: int, size: int = 10) -> SegmentTable:
    """A system of 5 tokens and a tree of `size` tokens for each entity."""
    runs = [[100 * entity + i for i in range(size)] for entity in entities]
    tokens = [1, 2, 3, 4, 5, *(token for run in runs for token in run), 9]
    forest = Forest.make(len(tokens), 5, [size] * len(runs), [-1] * len(runs))
    return SegmentTable.make(np.array(tokens, np.int64), forest, "tree")


def run_all(name: str, tables: Sequence[SegmentTable], max_passed: int = 64) -> list[int]:
    """All of them wait from the start; the order in which they run."""
    tree = KVTree()
    scheduler = make_scheduler(name, tree, max_passed=max_passed)
    for number, table in enumerate(tables):
        scheduler.enter(number, NAMESPACE, table)
    order: list[int] = []
    while len(scheduler):
        number = scheduler.order()[0]
        assert isinstance(number, int)
        scheduler.start(number, cache_context(tree, NAMESPACE, tables[number]).matched)
        scheduler.finish(number)
        order.append(number)
    return order


def test_longest_dependency_match_takes_what_is_cached_most() -> None:
    tables = [table_of(1), table_of(2, 3), table_of(1, 2), table_of(4), table_of(3, 2, 1)]
    # All are cold: the first. Then 2 has entity 1 (so has 4, which came later), then 1 or 4.
    assert run_all("ldm", tables) == [0, 2, 4, 1, 3]


def test_aged_match_takes_the_largest_share_that_is_cached_and_age_outweighs_it() -> None:
    tables = [table_of(1), table_of(2), table_of(1, 3), table_of(1), table_of(4, 1, 5)]
    # After 0: 3 is cached whole, 2 by 15 of 25 tokens, 4 by 15 of 35, 1 has its system only.
    assert run_all("ldm_aged", tables) == [0, 3, 2, 4, 1]
    # Two of four passes are worth half: 5 of 15 and 1/2 are more than 15 of 35 tokens.
    assert run_all("ldm_aged", tables, max_passed=4) == [0, 3, 2, 1, 4]


def test_longest_shared_prefix_runs_groups_together() -> None:
    tables = [table_of(1), table_of(2), table_of(3), table_of(1, 8), table_of(2, 9), table_of(3, 1)]
    # 5 shares most with all (entities 1 and 3). 0, 3 and 2 share one each with it, and 0 more with
    # the rest than 2; then 3 after 0. None shares with 3, but 1 and 4 do with one another.
    assert run_all("lsp", tables) == [5, 0, 3, 1, 4, 2]


def test_first_come_first_served_is_the_order_of_arrival() -> None:
    assert run_all("fcfs", [table_of(i % 3) for i in range(7)]) == list(range(7))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_bound_of_zero_keeps_the_order_of_arrival(name: str) -> None:
    assert run_all(name, [table_of(i % 3) for i in range(7)], max_passed=0) == list(range(7))


@pytest.mark.parametrize("name", SCHEDULERS)
@settings(max_examples=60, deadline=None)
@given(
    entities=st.lists(st.lists(st.integers(1, 5), unique=True, max_size=3), max_size=30),
    depth=st.integers(1, 8),
    max_passed=st.integers(0, 5),
    num_next=st.integers(1, 3),
)
def test_nobody_is_passed_over_more_often_than_allowed(
    name: str, entities: list[list[int]], depth: int, max_passed: int, num_next: int
) -> None:
    tree = KVTree()
    scheduler = make_scheduler(name, tree, max_passed=max_passed)
    tables = [table_of(*chosen) for chosen in entities]
    passed = dict.fromkeys(range(len(tables)), 0)
    num_entered = 0
    waiting: list[int] = []
    while num_entered < len(tables) or waiting:
        while len(waiting) < depth and num_entered < len(tables):
            scheduler.enter(num_entered, NAMESPACE, tables[num_entered])
            waiting.append(num_entered)
            num_entered += 1
        order = scheduler.order(num_next)
        assert sorted(map(str, order)) == sorted(map(str, waiting))
        assert order == scheduler.order(num_next)
        # Several may be admitted at once, from one order.
        for number in order[:num_next]:
            assert isinstance(number, int)
            waiting.remove(number)
            for other in waiting:
                passed[other] += other < number
            scheduler.start(number, cache_context(tree, NAMESPACE, tables[number]).matched)
            scheduler.finish(number)
    assert max(passed.values(), default=0) <= max_passed


@pytest.mark.parametrize("name", ["ldm", "ldm_aged"])
@settings(max_examples=100, deadline=None)
@given(
    waiting=st.lists(tree_prompts, min_size=1, max_size=10),
    evicted=st.lists(st.integers(0, 12), max_size=10),
    tells=st.booleans(),
)
def test_the_front_is_what_counting_everything_would_take(
    name: str, waiting: list[TreePrompt], evicted: list[int], tells: bool
) -> None:
    tree = KVTree()
    scheduler = make_scheduler(name, tree, max_passed=1000)
    passed = dict.fromkeys(range(len(waiting)), 0)
    tables = dict(enumerate(map(make_table, waiting)))
    for number, table in tables.items():
        scheduler.enter(number, NAMESPACE, table)
    evicted = evicted + [0] * len(tables)
    while tables:
        worth: dict[int, float] = {}
        for number, table in tables.items():
            worth[number] = plan_request(tree, tree.root(NAMESPACE), table).num_hits
            if name == "ldm_aged":
                share = worth[number] / max(1, table.task_start)
                worth[number] = share + passed[number] / 1000
        best = max(worth, key=lambda number: (worth[number], -number))
        for number in tables:
            passed[number] += number < best
        assert scheduler.order()[0] == best
        matched = cache_context(tree, NAMESPACE, tables.pop(best)).matched
        scheduler.start(best, matched if tells else None)
        scheduler.finish(best)
        tree.evict(evicted.pop(0))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_requests_may_leave_and_come_back(name: str) -> None:
    scheduler = make_scheduler(name, KVTree())
    for number in range(3):
        scheduler.enter(number, NAMESPACE, table_of(number))
    with pytest.raises(ValueError, match="waits or runs already"):
        scheduler.enter(0, NAMESPACE, table_of(0))
    scheduler.leave(1)
    scheduler.start(0)
    with pytest.raises(ValueError, match="waits or runs already"):
        scheduler.enter(0, NAMESPACE, table_of(0))
    scheduler.finish(0)
    scheduler.enter(0, NAMESPACE, table_of(0))
    assert len(scheduler) == 2
    assert set(scheduler.order()) == {0, 2}
    scheduler.leave(0)
    scheduler.leave(2)
    assert scheduler.order() == []


def test_wrong_arguments_name_the_choices() -> None:
    with pytest.raises(ConfigError, match="fcfs, ldm, ldm_aged, lsp"):
        make_scheduler("lifo", KVTree())
    with pytest.raises(ConfigError, match="at least 0"):
        make_scheduler("ldm", KVTree(), max_passed=-1)
