# SPDX-License-Identifier: Apache-2.0
"""Plans against a model that knows one thing per token: its path, its slot and its home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.cache import KVTree
from depcache.cache.invariants import check_tree
from depcache.plan import RequestPlan, SegmentTable, plan_request
from depcache.prompt.forest import Forest
from depcache.prompt.layout import read_layout
from tests.helpers.insertion import cache_context
from tests.helpers.prompts import TreePrompt
from tests.helpers.strategies import prompts

thorough = settings(max_examples=150, deadline=None)

Contents = dict[tuple[int, ...], tuple[int, int]]


def make_table(prompt: TreePrompt) -> SegmentTable:
    forest = Forest.make(
        prompt.num_tokens, len(prompt.system), prompt.segment_lens, prompt.segment_parents
    )
    return SegmentTable.make(np.array(prompt.tokens, np.int64), forest, read_layout(prompt.layout))


@dataclass
class ServedPrompts:
    """A tree that has served prompts of one layout, and what it holds: path -> (slot, home)."""

    tree: KVTree = field(default_factory=KVTree)
    cached: Contents = field(default_factory=dict)
    num_slots: int = 0

    def plan(self, prompt: TreePrompt, *, allow_shift: bool = True) -> RequestPlan:
        return plan_request(
            self.tree, self.tree.root(None), make_table(prompt), allow_shift=allow_shift
        )

    def serve(self, prompt: TreePrompt) -> None:
        """Cache the prompt's missed tokens, as the engine does."""
        plan = cache_context(self.tree, None, make_table(prompt), first_slot=self.num_slots)
        for slot, index in enumerate(plan.order[plan.num_hits : plan.num_context], self.num_slots):
            key = prompt.keys[index]
            assert key is not None
            # Where trees begin alike, the first one's KV is kept.
            self.cached.setdefault(key, (slot, prompt.positions[index]))
        self.num_slots += plan.num_missed

    def evict(self, num_tokens: int) -> None:
        gone = {
            slot
            for slots in self.tree.tiers.evict(self.tree, num_tokens)
            for slot in slots.tolist()
        }
        self.cached = {key: at for key, at in self.cached.items() if at[0] not in gone}

    def hits(self, prompt: TreePrompt, *, allow_shift: bool = True) -> dict[int, tuple[int, int]]:
        """index -> (slot, home) of the tokens that are cached down from the first of their path."""
        hits: dict[int, tuple[int, int]] = {}
        for index in range(prompt.num_context):
            parent, key = prompt.parents[index], prompt.keys[index]
            if (parent >= 0 and parent not in hits) or key is None or key not in self.cached:
                continue
            if allow_shift or self.cached[key][1] == prompt.positions[index]:
                hits[index] = self.cached[key]
        return hits


@st.composite
def served_and_new(draw: st.DrawFn) -> tuple[ServedPrompts, TreePrompt]:
    """A tree that served up to four prompts and forgot a part, and a prompt that overlaps."""
    layout = st.just(draw(st.sampled_from(["tree", "staggered", "sequential"])))
    served = ServedPrompts()
    for prompt in draw(st.lists(prompts(layout, twins=True), max_size=4)):
        served.serve(prompt)
        served.evict(draw(st.sampled_from([0, 0, 1, 4])))
    return served, draw(prompts(layout, twins=True))


def contents(tree: KVTree) -> Contents:
    """What the tree holds, read from its nodes."""
    from depcache.cache.radix import to_tokens

    found: Contents = {}
    for node in tree.nodes():
        path: tuple[int, ...] = ()
        for above in tree.path(node):
            path = (*to_tokens(above.key).tolist(), *path)
        first = len(path) - node.num_tokens
        for i, slot in enumerate(node.slots.tolist()):
            found[path[: first + i + 1]] = (slot, node.home + i)
    return found


@thorough
@given(case=served_and_new(), allow_shift=st.booleans())
def test_plan_equals_the_model_token_by_token(
    case: tuple[ServedPrompts, TreePrompt], allow_shift: bool
) -> None:
    served, prompt = case
    hits = served.hits(prompt, allow_shift=allow_shift)
    plan = served.plan(prompt, allow_shift=allow_shift)
    order = plan.order.tolist()

    assert sorted(order) == list(range(prompt.num_tokens))
    shared, shifted = order[: plan.num_shared], order[plan.num_shared : plan.num_hits]
    missed, task = order[plan.num_hits : prompt.num_context], order[prompt.num_context :]

    positions = prompt.positions
    assert set(shared) == {i for i, (_, home) in hits.items() if home == positions[i]}
    assert set(shifted) == {i for i, (_, home) in hits.items() if home != positions[i]}
    assert missed == [i for i in range(prompt.num_context) if i not in hits]
    assert task == list(range(prompt.num_context, prompt.num_tokens))

    assert plan.shared_slots.tolist() == [hits[i][0] for i in shared]
    assert plan.shifted.slots.tolist() == [hits[i][0] for i in shifted]
    assert plan.shifted.home.tolist() == [hits[i][1] for i in shifted]
    assert plan.shifted.placed.tolist() == [positions[i] for i in shifted]
    assert (plan.num_context, plan.num_missed) == (prompt.num_context, len(missed))
    assert plan.num_locked == len(set(hits.values()))


@thorough
@given(case=served_and_new(), allow_shift=st.booleans())
def test_planning_splits_nodes_but_leaves_what_is_cached(
    case: tuple[ServedPrompts, TreePrompt], allow_shift: bool
) -> None:
    served, prompt = case
    version, totals = served.tree.version, (served.tree.num_evictable, served.tree.num_locked)
    served.plan(prompt, allow_shift=allow_shift)
    check_tree(served.tree)
    assert contents(served.tree) == served.cached
    assert served.tree.version == version
    assert (served.tree.num_evictable, served.tree.num_locked) == totals


@thorough
@given(case=served_and_new())
def test_the_same_prompt_is_planned_the_same_again(
    case: tuple[ServedPrompts, TreePrompt],
) -> None:
    """A plan holds as long as the tree's version does, even when later plans split nodes."""
    served, prompt = case
    first, second = served.plan(prompt), served.plan(prompt)
    assert first.order.tolist() == second.order.tolist()
    assert first.shared_slots.tolist() == second.shared_slots.tolist()
    assert first.shifted.slots.tolist() == second.shifted.slots.tolist()
    assert first.matched == second.matched


@thorough
@given(case=served_and_new(), others=st.lists(prompts(st.just("tree"), twins=True), max_size=3))
def test_locking_a_plans_nodes_keeps_its_hits_and_nothing_else(
    case: tuple[ServedPrompts, TreePrompt], others: list[TreePrompt]
) -> None:
    served, prompt = case
    plan = served.plan(prompt)
    for other in others:  # of other waiting requests: they may split this plan's nodes
        served.plan(other)
    served.tree.lock(plan.nodes)
    assert served.tree.num_locked == plan.num_locked
    dropped = {
        slot for slots in served.tree.tiers.evict(served.tree, 10**6) for slot in slots.tolist()
    }
    kept = {*plan.shared_slots.tolist(), *plan.shifted.slots.tolist()}
    assert not dropped & kept
    assert {slot for slot, _ in contents(served.tree).values()} == kept
    served.tree.unlock(plan.nodes)
    check_tree(served.tree)


@thorough
@given(case=served_and_new())
def test_a_segments_end_is_where_its_run_goes_on(case: tuple[ServedPrompts, TreePrompt]) -> None:
    """`ends` and `matched` are what inserting the rest needs: serve it, and all of it is there."""
    served, prompt = case
    served.serve(prompt)
    check_tree(served.tree)
    assert contents(served.tree) == served.cached
    assert served.plan(prompt).num_missed == 0


@thorough
@given(case=served_and_new())
def test_nodes_come_parents_first(case: tuple[ServedPrompts, TreePrompt]) -> None:
    served, prompt = case
    seen: set[int] = set()
    for node in served.plan(prompt).nodes:
        assert node.parent is not None
        assert node.parent.is_root or id(node.parent) in seen
        seen.add(id(node))


def check_counts(plan: RequestPlan, shared: int, shifted: int, missed: int) -> None:
    assert (plan.num_shared, plan.num_shifted, plan.num_missed) == (shared, shifted, missed)


SYSTEM, TASK = [1, 2], [9]
LEFT: tuple[list[int], list] = ([10, 11], [([12], []), ([13, 14], [])])
RIGHT: tuple[list[int], list] = ([20, 21, 22], [])


@pytest.mark.parametrize(
    ("layout", "shared", "shifted"),
    # LEFT is 4 high and has 5 tokens; swapped, only the system stays where it was.
    [("tree", 10, 0), ("staggered", 2, 8), ("sequential", 2, 8)],
)
def test_swapped_trees_are_shared_or_shifted_by_layout(
    layout: str, shared: int, shifted: int
) -> None:
    served = ServedPrompts()
    served.serve(TreePrompt(SYSTEM, [LEFT, RIGHT], TASK, layout))
    plan = served.plan(TreePrompt(SYSTEM, [RIGHT, LEFT], TASK, layout))
    check_counts(plan, shared, shifted, 0)


def test_a_shift_is_told_token_by_token() -> None:
    served = ServedPrompts()
    served.serve(TreePrompt(SYSTEM, [LEFT, RIGHT], TASK, "staggered"))
    plan = served.plan(TreePrompt(SYSTEM, [RIGHT, LEFT], TASK, "staggered"))
    assert plan.shifted.home.tolist() == [6, 7, 8, 2, 3, 4, 4, 5]
    assert plan.shifted.placed.tolist() == [2, 3, 4, 5, 6, 7, 7, 8]


def test_without_shifting_a_moved_tree_is_missed_and_the_rest_is_shared() -> None:
    served = ServedPrompts()
    served.serve(TreePrompt(SYSTEM, [LEFT, RIGHT], TASK, "sequential"))
    moved = TreePrompt(SYSTEM, [LEFT, ([30], []), RIGHT], TASK, "sequential")
    check_counts(served.plan(moved), shared=7, shifted=3, missed=1)
    check_counts(served.plan(moved, allow_shift=False), shared=7, shifted=0, missed=4)


def test_a_path_is_found_however_it_is_cut_into_segments() -> None:
    served = ServedPrompts()
    served.serve(TreePrompt(SYSTEM, [([10, 11, 12, 13], [])], TASK))
    cut = TreePrompt(SYSTEM, [([10], [([11, 12], [([13], [])])])], TASK)
    check_counts(served.plan(cut), shared=6, shifted=0, missed=0)


def test_another_system_shares_no_tree() -> None:
    served = ServedPrompts()
    served.serve(TreePrompt(SYSTEM, [LEFT], TASK))
    check_counts(served.plan(TreePrompt([1, 3], [LEFT], TASK)), shared=1, shifted=0, missed=6)


def test_a_longer_system_shares_no_tree() -> None:
    """The tree's tokens would follow other tokens and sit at other positions."""
    served = ServedPrompts()
    served.serve(TreePrompt(SYSTEM, [LEFT], TASK))
    longer = TreePrompt([*SYSTEM, 3], [LEFT], TASK)
    check_counts(served.plan(longer), shared=2, shifted=0, missed=6)


def test_the_task_is_never_a_hit() -> None:
    served = ServedPrompts()
    served.serve(TreePrompt(SYSTEM, [([10, 9], [])], TASK))
    plan = served.plan(TreePrompt(SYSTEM, [([10], [])], TASK))
    check_counts(plan, shared=3, shifted=0, missed=0)
    assert plan.order.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("system", [[], SYSTEM])
def test_a_prompt_without_trees_has_its_system_alone(system: Sequence[int]) -> None:
    served = ServedPrompts()
    prompt = TreePrompt(list(system), [], TASK)
    check_counts(served.plan(prompt), 0, 0, len(system))
    served.serve(prompt)
    check_counts(served.plan(prompt), len(system), 0, 0)
