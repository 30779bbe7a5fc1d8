# SPDX-License-Identifier: Apache-2.0
"""A look says what a match would find, in every tier, and leaves the tree as it was."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.cache import KVTree, Tier, TierCopies
from depcache.cache.invariants import check_tree
from depcache.plan import ContextInsertion, SegmentTable, look_up, match_segments, plan_request
from tests.depcache.plan.test_request import make_table
from tests.helpers.keeper import Keeper
from tests.helpers.prompts import TreePrompt
from tests.helpers.strategies import prompts

NAMESPACE = "a tenant"


class TieredTree:
    """A tree that served prompts, parts of which have left the device since."""

    def __init__(self) -> None:
        self.tree = KVTree()
        self.lower = [
            TierCopies(self.tree, "host"),
            TierCopies(self.tree, "disk", cut=lambda copy, at: (copy, copy)),
        ]
        self.tree.tiers.append(Keeper(self.lower[0], self._demote))
        self.tree.tiers.append(Tier(self.lower[1]))
        self.num_slots = 0
        self.draws = iter(())

    def _demote(self, victims: list) -> None:
        """Copies in host memory, on disk, in both or none, as drawn."""
        for node, slots in victims:
            kind = next(self.draws, 3)
            for number, copies in enumerate(self.lower):
                if kind & 1 << number and copies.tier not in node.copies:
                    copies.add(node, slots if number == 0 else "a value")

    def serve(self, table: SegmentTable) -> None:
        root = self.tree.root(NAMESPACE)
        plan = plan_request(self.tree, root, table, allow_load=False)
        insertion = ContextInsertion(self.tree, NAMESPACE, table, plan, num_computed=0)
        slots = np.arange(self.num_slots, self.num_slots + plan.num_context)
        self.num_slots += plan.num_context
        self.tree.unlock(insertion.offer(plan.num_context, slots).taken)

    def shape(self) -> list:
        return [
            (node.key, node.home, node.slots is None, sorted(node.copies))
            for node in self.tree.nodes()
        ]


@settings(max_examples=200, deadline=None)
@given(
    served=st.lists(prompts(twins=True), max_size=4),
    num_evicted=st.integers(0, 40),
    draws=st.lists(st.integers(0, 3), max_size=40),
    prompt=prompts(twins=True),
    num_tiers=st.sampled_from([0, 1, 2, None]),
)
def test_a_look_counts_what_a_match_finds_and_splits_nothing(
    served: list[TreePrompt],
    num_evicted: int,
    draws: list[int],
    prompt: TreePrompt,
    num_tiers: int | None,
) -> None:
    made = TieredTree()
    for other in served:
        made.serve(make_table(other))
    made.draws = iter(draws)
    made.tree.tiers.evict(made.tree, num_evicted)
    check_tree(made.tree)
    table = make_table(prompt)

    before = made.shape()
    look = look_up(made.tree, made.tree.root(NAMESPACE), table, num_tiers=num_tiers)
    assert made.shape() == before

    match = match_segments(made.tree, made.tree.root(NAMESPACE), table, num_tiers=num_tiers)
    assert look.matched == match.matched
    placed = [node.home == at for node, at in zip(match.nodes, match.placed, strict=True)]
    sizes = [node.num_tokens for node in match.nodes]
    assert look.shared == sum(n for n, is_placed in zip(sizes, placed, strict=True) if is_placed)
    assert look.shifted == sum(sizes) - look.shared
    assert look.in_tiers == [sum(node.num_tokens for node in nodes) for nodes in match.in_tiers]
    assert look.num_cached == sum(look.matched)
    assert look.matched == [sum(parts) for parts in look.by_segment]
    totals = look.shared, look.shifted, sum(look.in_tiers)
    assert totals == tuple(np.array([(0, 0, 0), *look.by_segment]).sum(axis=0))
    # The match has split the nodes it ended in, and left the lower halves to those looked at.
    for parts, whole in zip(match.in_tiers, look.tier_nodes, strict=True):
        assert len(set(whole)) == len(whole)
        above = {up for node in whole for up in KVTree.path(node)}
        assert set(parts) <= above


def test_nobody_knows_of_a_root_that_was_only_looked_at() -> None:
    tree = KVTree()
    table = SegmentTable.of_plain_prompt(np.array([1, 2, 3]))
    for number in range(3):
        assert look_up(tree, tree.root(f"tenant {number}"), table).num_cached == 0
    assert tree.namespaces() == []
    tree.insert(tree.root("tenant 1"), table.key, np.arange(3), 0)
    assert tree.namespaces() == ["tenant 1"]
    assert look_up(tree, tree.root("tenant 1"), table).shared == 3
    assert look_up(tree, tree.root("tenant 2"), table).shared == 0
    tree.tiers.evict(tree, 3)
    assert tree.namespaces() == []


def test_two_who_look_at_once_do_not_make_two_trees() -> None:
    tree = KVTree()
    first, second = tree.root("a"), tree.root("a")
    table = SegmentTable.of_plain_prompt(np.array([1, 2, 3]))
    tree.insert(second, table.key, np.arange(3), 0)
    with pytest.raises(ValueError, match="ask anew"):
        tree.insert(first, table.key, np.arange(3), 0)
    check_tree(tree)
