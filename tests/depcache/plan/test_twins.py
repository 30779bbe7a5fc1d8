# SPDX-License-Identifier: Apache-2.0
"""Segments that begin alike: stored once, and standing whole in the prompt."""

from __future__ import annotations

import numpy as np

from depcache.cache import KVTree, TierCopies, TierStack
from depcache.cache.invariants import check_tree
from depcache.cache.tiers import Tier
from depcache.plan import plan_request
from tests.depcache.plan.test_segments import make_table
from tests.helpers.insertion import cache_context
from tests.helpers.prompts import TreePrompt


class Host(Tier):
    """Copies that are their own device slots, so that a test sees which row reads which."""

    def keep(self, leaving):
        for node, slots in reversed(leaving):
            self.copies.add(node, slots)
        return leaving

    def free(self, copy): ...


def rows_behind(system: list[int], *rows: list[int]) -> TreePrompt:
    return TreePrompt(system, [(row, []) for row in rows], [99], "tree")


def test_a_common_beginning_is_stored_once() -> None:
    tree = KVTree()
    prompt = rows_behind([1, 2], [5, 6, 7], [5, 6, 8], [5, 6, 7])
    plan = cache_context(tree, None, make_table(prompt))
    assert plan.num_missed == 2 + 9  # all of it was computed once
    assert tree.num_tokens == 2 + 4  # 5 6 (7 | 8)
    again = plan_request(tree, tree.root(None), make_table(prompt))
    assert again.num_shared == 11 and again.num_missed == 0
    slots = dict(zip(again.order[: again.num_hits].tolist(), again.shared_slots, strict=True))
    assert slots[2] == slots[5] == slots[8] and slots[4] == slots[10] != slots[7]
    assert again.num_locked == 6
    check_tree(tree)


def test_a_row_that_ends_inside_another_splits_what_was_found_whole() -> None:
    tree = KVTree()
    cache_context(tree, None, make_table(rows_behind([1], [5, 6, 7, 8])))
    plan = plan_request(tree, tree.root(None), make_table(rows_behind([1], [5, 6, 7, 8], [5, 6])))
    assert plan.num_shared == 7 and plan.matched == [1, 4, 2]
    assert len(plan.shared_slots) == len(set(plan.order[:7].tolist())) == 7


def test_what_two_rows_need_is_loaded_once() -> None:
    tree = KVTree(tiers=(tiers := TierStack()))
    host = Host(TierCopies(tree, "host"))
    tiers.append(host)
    prompt = rows_behind([1, 2], [5, 6, 7], [5, 6, 8], [5, 6, 7])
    first = cache_context(tree, None, make_table(prompt), first_slot=100)
    tiers.evict(tree, 10**6)
    assert tree.num_tokens == 0
    plan = plan_request(tree, tree.root(None), make_table(prompt))
    assert plan.num_loaded == 11 and len(plan.loaded_again) == 5
    assert sum(node.num_tokens for node in plan.loaded) == 6
    loaded = np.concatenate([node.copies["host"] for node in plan.loaded])
    slots = np.concatenate((loaded, loaded[plan.loaded_again]))
    by_index = dict(zip(plan.order[:11].tolist(), slots.tolist(), strict=True))
    computed = dict(zip(first.order[:11].tolist(), range(100, 111), strict=True))
    assert [by_index[i] for i in (0, 1, 2, 3, 4)] == [computed[i] for i in (0, 1, 2, 3, 4)]
    assert by_index[5] == by_index[8] == by_index[2]
    assert by_index[7] == computed[7] and by_index[10] == by_index[4]
    host.copies.check()


def test_a_split_of_what_is_to_be_loaded_makes_the_plan_stale() -> None:
    tree = KVTree(tiers=(tiers := TierStack()))
    tiers.append(Host(TierCopies(tree, "host")))
    table = make_table(rows_behind([1], [5, 6, 7, 8]))
    cache_context(tree, None, table)
    tiers.evict(tree, 10**6)
    plan = plan_request(tree, tree.root(None), table)
    assert plan.version == tree.version and plan.num_loaded == 5
    plan_request(tree, tree.root(None), make_table(rows_behind([1], [5, 6, 9])))
    assert plan.version != tree.version  # a node of `loaded` is only the end of what it was
