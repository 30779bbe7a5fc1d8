# SPDX-License-Identifier: Apache-2.0
"""What is public is read by all and written by nobody else, and never mixed within a tree."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.cache import KVTree
from depcache.cache.invariants import check_tree
from depcache.cache.node import Node, Root
from depcache.plan import Lookahead, RequestPlan, SegmentTable, look_up, plan_request
from depcache.plan.public import BELOW, NOT_WHOLE, ON_DEVICE, choose_public
from tests.depcache.plan.test_request import make_table
from tests.helpers.insertion import cache_context
from tests.helpers.prompts import TreePrompt
from tests.helpers.strategies import prompts

PUBLIC = "everyone"
TENANTS = ("al", "bo")

Key = tuple[int, ...]


def root_of(node: Node) -> Root:
    at = node
    while at.parent is not None:
        at = at.parent
    assert isinstance(at, Root)
    return at


@dataclass
class Shop:
    """A tree with something public, and the slots of each path that it should hold, by whose."""

    tree: KVTree = field(default_factory=lambda: KVTree(public_of=lambda _: PUBLIC))
    cached: dict[str, dict[Key, int]] = field(default_factory=dict)
    num_slots: int = 0

    def plan(self, tenant: str, prompt: TreePrompt) -> RequestPlan:
        return plan_request(self.tree, self.tree.root(tenant), make_table(prompt))

    def serve(self, tenant: str, prompt: TreePrompt) -> RequestPlan:
        plan = cache_context(self.tree, tenant, make_table(prompt), first_slot=self.num_slots)
        own = self.cached.setdefault(tenant, {})
        for slot, index in enumerate(plan.order[plan.num_hits : plan.num_context], self.num_slots):
            key = prompt.keys[index]
            assert key is not None
            own.setdefault(key, slot)
        self.num_slots += plan.num_missed
        check_tree(self.tree)
        return plan

    def holds(self, tenant: str) -> set[Key]:
        return set(self.cached.get(tenant, {}))


def trees_of(prompt: TreePrompt) -> list[list[int]]:
    """Indices of the tokens of each tree."""
    table = make_table(prompt)
    found: dict[int, list[int]] = {}
    heads: list[int] = []
    for segment, parent in enumerate(table.parents):
        is_head = parent < 0 or (parent == 0 and prompt.system)
        heads.append(segment if is_head else heads[parent])
        if not (prompt.system and segment == 0):
            span = range(table.starts[segment], table.stops[segment])
            found.setdefault(heads[-1], []).extend(span)
    return list(found.values())


asked = st.lists(st.tuples(st.sampled_from((PUBLIC, *TENANTS)), prompts()), max_size=6)


@settings(max_examples=300, deadline=None)
@given(asked, st.sampled_from(TENANTS), prompts(twins=True))
def test_a_tenant_reads_its_own_and_what_is_public(
    served: list[tuple[str, TreePrompt]], tenant: str, prompt: TreePrompt
) -> None:
    shop = Shop()
    for who, other in served:
        shop.serve(who, other)
    own, public = shop.holds(tenant), shop.holds(PUBLIC)
    looked = look_up(shop.tree, shop.tree.root(tenant), make_table(prompt))
    plan = shop.plan(tenant, prompt)
    assert plan.matched == looked.matched
    assert plan.num_shared + plan.num_shifted == looked.shared + looked.shifted
    hits = plan.order[: plan.num_hits].tolist()
    slots = [*plan.shared_slots.tolist(), *plan.shifted.slots.tolist()]
    for index, slot in zip(hits, slots, strict=True):
        key = prompt.keys[index]
        assert slot in {shop.cached.get(who, {}).get(key) for who in (tenant, PUBLIC)}
    missed = set(range(prompt.num_context)) - set(hits)
    for tree in trees_of(prompt):
        keys = {prompt.keys[index] for index in tree}
        if keys <= public or keys <= own:
            assert not missed & set(tree)
        elif prompt.system:
            # Else nothing of it is read from the others.
            is_own = {prompt.keys[index] in own for index in set(tree) - missed}
            assert is_own <= {True}
    assert {root_of(node).namespace for node in plan.nodes} <= {tenant, PUBLIC}
    shop.tree.lock(plan.nodes)
    assert shop.tree.num_locked == plan.num_locked
    shop.tree.unlock(plan.nodes)
    check_tree(shop.tree)


@settings(max_examples=150, deadline=None)
@given(asked, prompts())
def test_nothing_of_a_tenants_is_read_by_others(
    served: list[tuple[str, TreePrompt]], prompt: TreePrompt
) -> None:
    """What one tenant finds is the same, whatever others have asked before."""
    alone, crowd = Shop(), Shop()
    for who, other in served:
        if who in (PUBLIC, "al"):
            alone.serve(who, other)
        crowd.serve(who, other)
    one, other = alone.plan("al", prompt), crowd.plan("al", prompt)
    assert one.matched == other.matched
    assert (one.num_shared, one.num_shifted) == (other.num_shared, other.num_shifted)
    crowd_public = crowd.plan(PUBLIC, prompt)
    assert alone.plan(PUBLIC, prompt).matched == crowd_public.matched
    assert {root_of(node).namespace for node in crowd_public.nodes} <= {PUBLIC}


def test_a_tree_that_is_public_in_part_is_computed_and_the_tenants_own() -> None:
    shop = Shop()
    shop.serve(PUBLIC, TreePrompt([9], [([1, 2], [])], [5]))
    more = TreePrompt([9], [([1, 2, 3], []), ([4], [])], [5])
    plan = shop.serve("al", more)
    assert plan.num_missed == 5  # the system as well: what is missed stands behind it
    assert shop.plan("al", more).num_missed == 0
    assert shop.plan("bo", more).num_missed == 5
    assert shop.plan(PUBLIC, more).num_missed == 2


def test_the_system_is_public_where_all_else_is() -> None:
    shop = Shop()
    shop.serve(PUBLIC, TreePrompt([9, 8], [([1, 2], []), ([3], [([4], []), ([5], [])])], [5]))
    plan = shop.serve("al", TreePrompt([9, 8], [([3], [([5], [])]), ([1, 2], [])], [5]))
    assert plan.num_missed == 0
    assert shop.holds("al") == set()
    assert [root.namespace for root in shop.tree.roots()] == [PUBLIC]


def test_a_tail_behind_public_trees_is_the_tenants() -> None:
    shop = Shop()
    prompt = TreePrompt([9], [([1, 2], []), ([3], [])], list(range(20, 90)))
    shop.serve(PUBLIC, prompt)
    table = make_table(prompt)
    plan = shop.plan("al", prompt)
    context = table.leaf_ends(plan.ends)
    assert context is not None
    tail = shop.tree.root("al", table.tail_key)
    shop.tree.hang(tail, context)
    key = table.key[4 * table.task_start :]
    home = int(table.positions[table.task_start])
    shop.tree.insert(tail, key, np.arange(1000, 1070), home)
    check_tree(shop.tree)

    def plan_for(tenant: str) -> RequestPlan:
        root = shop.tree.root(tenant)
        return plan_request(shop.tree, root, table, tail_stop=table.num_tokens - 1)

    assert plan_for("al").num_tail_shared == 69
    assert plan_for("bo").num_tail_shared == plan_for(PUBLIC).num_tail_shared == 0
    # What is public stays while the tail does, and leaves behind it.
    assert shop.tree.num_evictable == 74
    first = shop.tree.evict(1)
    assert [root_of(node).namespace for node, _ in first] == ["al"]


def test_what_waits_keeps_what_is_public_as_well() -> None:
    shop = Shop()
    prompt = TreePrompt([9], [([1, 2], [])], [5])
    shop.serve(PUBLIC, prompt)
    queue = Lookahead(shop.tree)
    queue.enter("r", "al", make_table(prompt))
    [leaf] = shop.plan("bo", prompt).nodes[-1:]
    assert leaf.waiters == {"r": None}
    queue.leave("r")
    assert leaf.waiters is None
    assert [root.namespace for root in shop.tree.roots()] == [PUBLIC]


@pytest.mark.parametrize(
    ("parents", "own", "public", "chosen"),
    [
        ([-1, 0], [2, 0], [2, 2], [True, True]),
        ([-1, 0, 0], [2, 0, 0], [2, 2, 0], [False, True, False]),
        ([-1, 0, 1], [2, 2, 0], [2, 2, 2], [True, True, True]),
        ([-1, 0, 1], [2, 2, 0], [2, 2, 0], None),
        ([-1, 0], [1, 1], [2, 2], [True, True]),
        ([-1, 0], [2, 2], [2, 2], None),
        ([-1, 0], [1, 1], [1, 1], None),
        ([-1, -1, 1], [0, 0, 0], [0, 2, 2], [False, True, True]),
        ([-1], [0], [1], [True]),
        ([], [], [], None),
    ],
)
def test_each_tree_is_read_where_more_of_it_is(
    parents: list[int], own: list[int], public: list[int], chosen: list[bool] | None
) -> None:
    assert {NOT_WHOLE, BELOW, ON_DEVICE} == {0, 1, 2}
    size = len(parents)
    table = SegmentTable(
        num_tokens=size,
        task_start=size,
        tokens=[1] * size,
        key=b"",
        starts=list(range(size)),
        stops=[i + 1 for i in range(size)],
        parents=parents,
        placed=list(range(size)),
        positions=np.arange(size),
    )
    assert choose_public(table, own, public) == chosen
