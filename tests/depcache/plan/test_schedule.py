# SPDX-License-Identifier: Apache-2.0
"""Schedulers: their order by hand and by definition, and who waits how long."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.cache import KVTree
from depcache.errors import ConfigError
from depcache.plan.schedule import (
    LeastDifference,
    LongestSharedPrefix,
    Scheduler,
    make_scheduler,
)
from eval.policy.orders import ORDERS
from tests.helpers.insertion import cache_context
from tests.helpers.orders import NAMESPACE, run_all, table_of


def test_longest_shared_prefix_runs_groups_together() -> None:
    tables = [table_of(1), table_of(2), table_of(3), table_of(1, 8), table_of(2, 9), table_of(3, 1)]
    # 5 shares most with all (entities 1 and 3). 0, 3 and 2 share one each with it, and 0 more with
    # the rest than 2; then 3 after 0. None shares with 3, but 1 and 4 do with one another.
    assert run_all(LongestSharedPrefix, tables) == [5, 0, 3, 1, 4, 2]


def test_least_difference_begins_with_the_oldest_and_counts_pieces_not_tokens() -> None:
    tables = [
        table_of(1, 2, 3),
        table_of(4, 5, 6),
        table_of(1, 2, 3, 7, 8),
        table_of(1, size=90),
        table_of(1, 2, 9),
    ]
    # From 0: 2 and 4 differ in two pieces, 3 in four (a long 1 is another piece), 1 in six. After 2
    # it is 4 (from 2: four), then 3 (four) before 1 (six).
    assert run_all(LeastDifference, tables) == [0, 2, 4, 3, 1]


@settings(max_examples=100, deadline=None)
@given(
    entities=st.lists(
        st.lists(st.integers(1, 6), unique=True, max_size=4), min_size=1, max_size=12
    ),
    depth=st.integers(1, 12),
)
def test_least_difference_takes_the_smallest_xor_with_the_one_before(
    entities: list[list[int]], depth: int
) -> None:
    scheduler = LeastDifference(KVTree(), max_passed=1000)
    queue = list(enumerate(map(set, entities)))
    waiting: list[tuple[int, set[int]]] = []
    last: set[int] | None = None
    while queue or waiting:
        while queue and len(waiting) < depth:
            waiting.append(queue.pop(0))
            number, chosen = waiting[-1]
            scheduler.enter(number, NAMESPACE, table_of(*sorted(chosen)))
        expected, before = [], last
        left = list(waiting)
        while left:
            best = left[0] if before is None else min(left, key=lambda one: len(one[1] ^ before))
            left.remove(best)
            expected.append(best[0])
            before = best[1]
        assert scheduler.order() == expected
        first = next(one for one in waiting if one[0] == expected[0])
        waiting.remove(first)
        last = first[1]
        scheduler.start(first[0])
        scheduler.finish(first[0])


def test_first_come_first_served_is_the_order_of_arrival() -> None:
    assert run_all(Scheduler, [table_of(i % 3) for i in range(7)]) == list(range(7))


@pytest.mark.parametrize("order", ORDERS.values())
def test_a_bound_of_zero_keeps_the_order_of_arrival(order: type[Scheduler]) -> None:
    assert run_all(order, [table_of(i % 3) for i in range(7)], max_passed=0) == list(range(7))


@pytest.mark.parametrize("order", ORDERS.values())
@settings(max_examples=60, deadline=None)
@given(
    entities=st.lists(st.lists(st.integers(1, 5), unique=True, max_size=3), max_size=30),
    depth=st.integers(1, 8),
    max_passed=st.integers(0, 5),
    num_next=st.integers(1, 3),
)
def test_nobody_is_passed_over_more_often_than_allowed(
    order: type[Scheduler], entities: list[list[int]], depth: int, max_passed: int, num_next: int
) -> None:
    tree = KVTree()
    scheduler = order(tree, max_passed=max_passed)
    tables = [table_of(*chosen) for chosen in entities]
    passed = dict.fromkeys(range(len(tables)), 0)
    num_entered = 0
    waiting: list[int] = []
    while num_entered < len(tables) or waiting:
        while len(waiting) < depth and num_entered < len(tables):
            scheduler.enter(num_entered, NAMESPACE, tables[num_entered])
            waiting.append(num_entered)
            num_entered += 1
        ordered = scheduler.order()
        assert sorted(map(str, ordered)) == sorted(map(str, waiting))
        assert ordered == scheduler.order()
        # Several may be admitted at once, from one order.
        for number in ordered[:num_next]:
            assert isinstance(number, int)
            waiting.remove(number)
            for other in waiting:
                passed[other] += other < number
            cache_context(tree, NAMESPACE, tables[number])
            scheduler.start(number)
            scheduler.finish(number)
    assert max(passed.values(), default=0) <= max_passed


@pytest.mark.parametrize("order", ORDERS.values())
def test_requests_may_leave_and_come_back(order: type[Scheduler]) -> None:
    scheduler = order(KVTree())
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
    with pytest.raises(ConfigError, match="fcfs, lsp, xor"):
        make_scheduler("lifo", KVTree())
    with pytest.raises(ConfigError, match="at least 0"):
        make_scheduler("lsp", KVTree(), max_passed=-1)
