# SPDX-License-Identifier: Apache-2.0
"""What each policy drops first, on trees small enough to work out by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest

from depcache.cache import KVTree, Node, make_policy
from depcache.cache.radix import to_key
from depcache.plan import Lookahead, SegmentTable

LEAF = 2  # tokens of a leaf


def insert(tree: KVTree, number: int, **options: int) -> Node:
    tokens = to_key(np.array([number, 1000]))
    slots = np.array([LEAF * number, LEAF * number + 1])
    node = tree.insert(tree.root(None), tokens, slots, 0, **options).node
    tree.lock([node])
    tree.unlock([node])
    return node


def use(tree: KVTree, *nodes: Node) -> None:
    tree.lock(nodes)
    tree.touch(nodes)
    tree.unlock(nodes)


def table(*numbers: int) -> SegmentTable:
    """A request for one leaf."""
    (number,) = numbers
    return SegmentTable.of_plain_prompt(np.array([number, 1000]))


def drop_one(tree: KVTree) -> int:
    (slots,) = tree.tiers.evict(tree, 1)
    return int(slots[0]) // LEAF


def drain(tree: KVTree) -> list[int]:
    return [drop_one(tree) for _ in range(tree.num_resident)]


def test_fifo_drops_what_came_first_whatever_was_used_since() -> None:
    tree = KVTree(make_policy("fifo"))
    leaves = [insert(tree, i) for i in range(3)]
    for _ in range(3):
        use(tree, leaves[0])
    assert drain(tree) == [0, 1, 2]


def test_gdsf_ages_hits_that_lie_long_back() -> None:
    """The clock rises with every victim, so new nodes overtake one that was popular once."""
    tree = KVTree(make_policy("gdsf"))
    popular = insert(tree, 0)
    use(tree, popular, popular)
    dropped = []
    for i in range(1, 12):
        insert(tree, i)
        insert(tree, i + 100)
        dropped.append(drop_one(tree))
    assert 0 in dropped
    assert dropped.index(0) > 1
    lfu = KVTree(make_policy("lfu"))
    popular = insert(lfu, 0)
    use(lfu, popular, popular)
    for i in range(1, 12):
        insert(lfu, i)
        insert(lfu, i + 100)
        assert drop_one(lfu) != 0


def test_pgdsf_keeps_what_was_dear_to_compute() -> None:
    tree = KVTree(make_policy("pgdsf"))
    insert(tree, 0, num_cached=0, num_computed=4000)  # 2,000 tokens of attention on average
    insert(tree, 1, num_cached=30_000, num_computed=4000)
    insert(tree, 2, num_cached=0, num_computed=8)  # a whole pass for eight tokens
    assert drain(tree) == [0, 1, 2]


def test_cfo_keeps_what_is_used_with_little_computed_again() -> None:
    tree = KVTree(make_policy("cfo"))
    often, seldom, exact, never = (insert(tree, i) for i in range(4))
    overheads = {often: 0.5, seldom: 0.1}  # worth 2 and 10 a use; 100 where nothing is said
    for node in (often, often, often, seldom, exact):
        tree.lock([node])
        tree.touch([node], overheads)
        tree.unlock([node])
    fresh = 100  # what was computed was used once
    worths = [tree.policy.priority(node) - fresh for node in (often, seldom, exact, never)]
    assert worths == [6, 10, 100, 0]
    assert drain(tree) == [3, 0, 1, 2]


def test_cfo_is_lfu_where_nothing_is_computed_again() -> None:
    rng = random.Random(5)
    uses = [[number for number in range(12) if rng.random() < 0.4] for _ in range(20)]
    drained: list[list[int]] = []
    for name in ("lfu", "cfo"):
        tree = KVTree(make_policy(name))
        leaves = [insert(tree, number) for number in range(12)]
        for used in uses:
            use(tree, *(leaves[number] for number in used))
        drained.append(drain(tree))
    assert drained[0] == drained[1]


def test_lacr_drops_first_what_nobody_waits_for() -> None:
    tree = KVTree(make_policy("lacr"))
    leaves = [insert(tree, i) for i in range(4)]
    use(tree, leaves[3])
    use(tree, leaves[3])
    lookahead = Lookahead(tree)
    for waiter, number in enumerate((2, 0)):
        lookahead.enter(waiter, None, table(number))
    assert drain(tree) == [1, 3, 0, 2]


def test_lacr_sees_a_request_that_came_after_the_node_was_queued_for_eviction() -> None:
    tree = KVTree(make_policy("lacr"))
    for i in range(3):
        insert(tree, i)
    Lookahead(tree).enter("late", None, table(0))
    assert drop_one(tree) == 1


def test_lacr_forgets_a_request_that_left() -> None:
    tree = KVTree(make_policy("lacr"))
    leaves = [insert(tree, i) for i in range(3)]
    use(tree, leaves[1], leaves[2])
    lookahead = Lookahead(tree)
    lookahead.enter("gone", None, table(0))
    lookahead.leave("gone")
    assert drop_one(tree) == 0


def test_lacr_weighs_many_hits_against_a_distant_use() -> None:
    """Both in accesses per request: 9 of 10 requests, against one of the next 50."""
    tree = KVTree(make_policy("lacr"))
    often, seldom = insert(tree, 0), insert(tree, 1)
    for _ in range(9):
        use(tree, often)
    use(tree, seldom)
    lookahead = Lookahead(tree)
    for waiter in range(50):
        lookahead.enter(waiter, None, table(5000 + waiter))
    lookahead.enter("distant", None, table(1))
    assert drop_one(tree) == 1


@pytest.mark.parametrize("history_weight", [0.0, 1.0])
def test_lacr_with_one_term_only_takes_the_other_for_ties(history_weight: float) -> None:
    tree = KVTree(make_policy("lacr", history_weight=history_weight))
    leaves = [insert(tree, i) for i in range(3)]
    use(tree, leaves[2])
    use(tree, leaves[2])
    lookahead = Lookahead(tree)
    lookahead.enter("waits", None, table(1))
    assert drain(tree) == ([0, 2, 1] if history_weight == 0 else [0, 1, 2])


def test_lacr_looks_no_further_than_its_window() -> None:
    tree = KVTree(make_policy("lacr", window=1))
    for i in range(2):
        insert(tree, i)
    lookahead = Lookahead(tree)
    lookahead.enter("next", None, table(1))
    lookahead.enter("behind it", None, table(0))
    assert drop_one(tree) == 0


def test_belady_drops_what_is_used_again_last() -> None:
    tree = KVTree(make_policy("belady"))
    for i in range(4):
        insert(tree, i)
    lookahead = Lookahead(tree)
    for number, wanted in enumerate((3, 0, 2, 0)):
        lookahead.enter(number, None, table(wanted))
    assert drain(tree) == [1, 2, 0, 3]
