# SPDX-License-Identifier: Apache-2.0
"""Patches against a model that knows one thing per token: all that its KV was computed over."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.cache import Node
from depcache.cache.invariants import check_tree
from depcache.plan import (
    ContextInsertion,
    PatchInsertion,
    RequestPlan,
    RowKind,
    SegmentTable,
    count_patched,
    look_up,
    plan_request,
)
from depcache.plan.patch_key import make_patch_keys
from depcache.prompt.forest import Forest
from tests.helpers.held import HeldServer
from tests.helpers.prompts import Tree, TreePrompt

Key = tuple[Any, ...]
"""(namespace, system, rows up to its own, indices recomputed up to it): one recomputed token."""

TREES: list[Tree] = [
    ([10, 11, 12], [([13], []), ([14, 15], [])]),
    ([20, 21, 22, 23], []),
    ([10, 11, 17, 18], []),
    ([30, 31], []),
]


def forest_of(prompt: TreePrompt) -> Forest:
    return Forest.make(
        prompt.num_tokens, len(prompt.system), prompt.segment_lens, prompt.segment_parents
    )


class Server(HeldServer):
    """A tree that settles and fuses prompts as a server gives them to it; slots count up.

    held  recomputed token -> its slot, as the model has it
    """

    def keep(self, leaving: list[tuple[Node, Any]]) -> None:
        assert not any(node.root.is_patch for node, _ in leaving)
        super().keep(leaving)

    def table(self, prompt: TreePrompt, chosen: list[int] | None) -> SegmentTable:
        """In layout `tree`, or fused where something is chosen."""
        tokens, forest = np.array(prompt.tokens, np.int64), forest_of(prompt)
        if chosen is None:
            return SegmentTable.make(tokens, forest, "tree")
        selected = np.array(chosen, np.int64)
        return SegmentTable.make(tokens, forest, "sequential", selected, keeps_patches=True)

    def plan(self, prompt: TreePrompt, chosen: list[int], namespace: str = "ns") -> RequestPlan:
        return plan_request(self.tree, self.tree.root(namespace), self.table(prompt, chosen))

    def serve(
        self,
        prompt: TreePrompt,
        chosen: list[int] | None,
        namespace: str = "ns",
        stops: tuple[int, ...] = (),
    ) -> RequestPlan:
        """Compute a prompt; rows are offered up to each of `stops`, then all of them."""
        tree, table = self.tree, self.table(prompt, chosen)
        num_whole = self._find_stop(prompt, table, namespace)
        plan = plan_request(tree, tree.root(namespace), table, allow_load=False)
        nodes = list(plan.nodes)
        tree.lock(nodes)
        slots = self.num_slots + np.arange(prompt.num_tokens)
        self.num_slots += prompt.num_tokens
        slots[: len(plan.shared_slots)] = plan.shared_slots
        kind = ContextInsertion if chosen is None else PatchInsertion
        insertion = kind(tree, namespace, table, plan, num_computed=1)
        for stop in (*stops, prompt.num_tokens):
            offer = insertion.offer(stop, slots[:stop])
            nodes += offer.taken
            for duplicate in offer.duplicates:
                at = slice(duplicate.row, duplicate.row + len(duplicate.own))
                assert slots[at].tolist() == duplicate.own.tolist()
                slots[at] = duplicate.cached
            check_tree(tree)
        assert insertion.next_row is None
        if chosen is not None:
            self._note(prompt, chosen, namespace, plan, slots, num_whole)
            owned = {int(i) for i in plan.order[insertion.owned]}
            in_place = {int(i) for i in plan.order[: plan.num_shared]}
            assert owned == in_place | {int(i) for p in plan.patches for i in p.of.indices}
        tree.touch(dict.fromkeys(nodes))
        tree.unlock(nodes)
        check_tree(tree)
        return plan

    def _find_stop(self, prompt: TreePrompt, table: SegmentTable, namespace: str) -> int:
        """The start of the first row, or of the system, that is not whole on the device."""
        matched = look_up(self.tree, self.tree.root(namespace), table, num_tiers=0).matched
        starts = [0, *forest_of(prompt).structure.tree_starts.tolist()]
        for start, stop, found in zip(table.starts, table.stops, matched, strict=True):
            if found < stop - start:
                return max(each for each in starts if each <= start)
        return prompt.num_context

    def _note(
        self,
        prompt: TreePrompt,
        chosen: list[int],
        namespace: str,
        plan: RequestPlan,
        slots: Any,
        stop: int,
    ) -> None:
        """Note what must be kept: what was computed again in the rows in front of `stop`."""
        keys = self.keys(prompt, chosen, namespace)
        slot_of = dict(zip(plan.order.tolist(), slots.tolist(), strict=True))
        for index, key in keys.items():
            if index < stop:
                assert self.held.setdefault(key, slot_of[index]) == slot_of[index]

    def keys(self, prompt: TreePrompt, chosen: list[int], namespace: str = "ns") -> dict[int, Key]:
        starts = forest_of(prompt).structure.tree_starts
        found: dict[int, Key] = {}
        for number, index in enumerate(chosen):
            row = int(np.searchsorted(starts, index, side="right"))
            over = repr((prompt.system, prompt.trees[:row]))
            found[index] = (namespace, over, *chosen[: number + 1])
        return found

    def expected(self, prompt: TreePrompt, chosen: list[int], namespace: str) -> dict[int, int]:
        """Index -> slot of what should be found: of each row from its first chosen token on."""
        starts = forest_of(prompt).structure.tree_starts
        found: dict[int, int] = {}
        missing: set[int] = set()
        for index, key in self.keys(prompt, chosen, namespace).items():
            row = int(np.searchsorted(starts, index, side="right"))
            if key not in self.held or row in missing:
                missing.add(row)
            else:
                found[index] = self.held[key]
        return found

    def forget(self, node: Node) -> None:
        self.note_freed(self.tree.forget(node)[0])

    def num_patched_nodes(self) -> int:
        return sum(node.root.is_patch for node in self.tree.nodes())


@st.composite
def requests(draw: st.DrawFn) -> tuple[TreePrompt, list[int], str]:
    trees = draw(st.permutations(TREES))[: draw(st.integers(1, 4))]
    prompt = TreePrompt(draw(st.sampled_from([[], [1, 2]])), trees, [5])
    context = range(len(prompt.system), prompt.num_context)
    chosen = draw(st.sets(st.sampled_from(context), max_size=6))
    return prompt, sorted(chosen), draw(st.sampled_from("ab"))


@settings(max_examples=150, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=6), st.data())
def test_a_recomputed_token_is_found_where_it_would_be_computed_again_and_nowhere_else(
    asked: list[tuple[TreePrompt, list[int], str]], data: st.DataObject
) -> None:
    server = Server()
    for prompt, chosen, namespace in asked:
        is_settled = data.draw(st.booleans())
        if is_settled:
            server.serve(prompt, None, namespace)
            expected = server.expected(prompt, chosen, namespace)
            table = server.table(prompt, chosen)
            look = look_up(server.tree, server.tree.root(namespace), table, num_tiers=0)
            num_nodes = server.tree.num_nodes
            seen = count_patched(server.tree, namespace, table, look.matched)
            assert (seen, server.tree.num_nodes) == (len(expected), num_nodes)
            plan = server.plan(prompt, chosen, namespace)
            first = plan.num_shared - plan.num_patched
            found = plan.order[first : plan.num_shared].tolist()
            slots = plan.shared_slots[first:].tolist()
            assert dict(zip(found, slots, strict=True)) == expected
            recomputed = plan.order[plan.rows.kind == RowKind.RECOMPUTED].tolist()
            assert recomputed == sorted(set(chosen) - set(expected))
        stops = data.draw(st.lists(st.integers(0, prompt.num_tokens), max_size=3))
        server.serve(prompt, chosen, namespace, tuple(sorted(stops)))
        if data.draw(st.booleans()):
            server.evict(data.draw(st.integers(1, 20)))
    assert server.tree.num_locked == 0


def two_rows() -> TreePrompt:
    return TreePrompt([1, 2], TREES[1:3], [5])


def test_an_equal_context_recomputes_nothing_whatever_is_asked() -> None:
    server = Server()
    server.serve(two_rows(), None)
    assert server.serve(two_rows(), [6, 7, 8]).num_recomputed == 3
    plan = server.plan(TreePrompt([1, 2], TREES[1:3], [6, 7, 8]), [6, 7, 8])
    assert (plan.num_patched, plan.num_recomputed, plan.num_missed) == (3, 0, 0)
    assert plan.num_locked == 10 + 3


def test_a_longer_selection_of_a_row_recomputes_what_is_new_of_it() -> None:
    server = Server()
    server.serve(two_rows(), None)
    server.serve(two_rows(), [6, 7])
    assert (server.plan(two_rows(), [6, 7, 9]).num_patched) == 2
    assert (server.plan(two_rows(), [6]).num_patched) == 1  # cuts the node, and keeps both parts
    assert (server.plan(two_rows(), [7]).num_patched) == 0  # was computed over the new 6


def test_another_selection_in_a_row_before_is_another_patch() -> None:
    server = Server()
    server.serve(two_rows(), None)
    server.serve(two_rows(), [3, 6, 7])
    plan = server.plan(two_rows(), [4, 6, 7])
    assert plan.num_patched == 0
    assert server.plan(two_rows(), [3, 7]).num_patched == 1


def test_nothing_is_kept_or_found_behind_a_row_that_is_not_there() -> None:
    server = Server()
    alone = TreePrompt([1, 2], TREES[2:3], [5])
    server.serve(alone, None)
    plan = server.serve(two_rows(), [6, 7])  # the first row is missed, and computed in full view
    assert plan.num_missed > plan.num_recomputed
    assert server.num_patched_nodes() == 0


def test_a_patch_goes_before_its_row_and_with_it() -> None:
    server = Server()
    server.serve(two_rows(), None)
    server.serve(two_rows(), [6, 7])
    [patch] = [node for node in server.tree.nodes() if node.root.is_patch]
    row = server.plan(two_rows(), [6, 7]).ends[2]
    assert row is not None and row.num_resident_children == 1
    server.forget(row)
    assert patch.slots is None and server.num_patched_nodes() == 0
    server.serve(two_rows(), None)
    server.serve(two_rows(), [6, 7])
    was_kept: list[bool] = []
    while server.tree.num_tokens:
        server.evict(1)
        was_kept.append(server.num_patched_nodes() > 0)
        for node in server.tree.nodes():
            if node.root.is_patch:
                assert all(end.slots is not None for end in node.root.context)
    assert was_kept == sorted(was_kept, reverse=True) and not was_kept[-1]


def test_two_prompts_are_never_written_alike() -> None:
    def keys(prompt: TreePrompt, chosen: list[int], behind: Any = None) -> list[bytes]:
        table = server.table(prompt, chosen)
        found = make_patch_keys(table.key, forest_of(prompt), np.array(chosen), behind)
        return [each.behind for each in found]

    server = Server()
    last = [9]
    prompt = two_rows()
    cut = TreePrompt([1, 2], [([20, 21], [([22, 23], [])]), TREES[2]], [5])
    moved = TreePrompt([1], [([2, 20, 21, 22, 23], []), TREES[2]], [5])
    merged = TreePrompt([1, 2], [([20, 21, 22, 23, 10, 11, 17, 18], [])], [5])
    found = [
        keys(prompt, last)[-1],
        keys(prompt, [2, 9])[-1],
        keys(cut, last)[-1],
        keys(moved, last)[-1],
        keys(merged, last)[-1],
        keys(prompt, last, (None, (20,)))[-1],
        keys(prompt, last, ((20,), None))[-1],
        keys(prompt, last, ((20, 21), None))[-1],
        keys(prompt, last, (((20,), (21,)), None))[-1],
        keys(prompt, last, (((20,), (21,), (22,)), None))[-1],
    ]
    assert len(set(found)) == len(found)
    assert keys(prompt, last)[-1] == keys(TreePrompt([1, 2], prompt.trees, [7, 8]), last)[-1]
