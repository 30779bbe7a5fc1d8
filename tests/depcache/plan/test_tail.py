# SPDX-License-Identifier: Apache-2.0
"""Tails against a model that knows one thing per token: its whole context, and what came before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.cache.invariants import check_tree
from depcache.cache.radix import to_key
from depcache.plan import (
    ContextInsertion,
    Lookahead,
    RequestPlan,
    SegmentTable,
    TailInsertion,
    look_up,
    plan_request,
)
from depcache.plan.tail_key import MIN_TAIL_TOKENS, make_tail_key
from depcache.prompt.forest import Forest
from tests.depcache.plan.test_request import make_table
from tests.helpers.held import HeldServer
from tests.helpers.prompts import Tree, TreePrompt

LONG = MIN_TAIL_TOKENS

Key = tuple[Any, ...]
"""(namespace, system, trees, token, token, ...): one token of a tail."""


class Server(HeldServer):
    """A tree that takes prompts and answers as a server gives them to it; slots count up.

    held  tail token -> its slot, as the model has it
    """

    def plan(self, prompt: TreePrompt, namespace: str = "ns", **options: Any) -> RequestPlan:
        options = {"tail_stop": prompt.num_tokens - 1, "allow_load": False, **options}
        return plan_request(self.tree, self.tree.root(namespace), make_table(prompt), **options)

    def serve(
        self,
        prompt: TreePrompt,
        answer: list[int],
        namespace: str = "ns",
        stops: tuple[int, ...] = (),
    ) -> RequestPlan:
        """Compute a prompt and its answer; rows are offered up to each of `stops`, then all."""
        table, plan, tree = make_table(prompt), self.plan(prompt, namespace), self.tree
        nodes = list(plan.nodes)
        tree.lock(nodes)
        rows = prompt.num_tokens + len(answer)
        slots = self.num_slots + np.arange(rows)
        self.num_slots += rows
        slots[: len(plan.shared_slots)] = plan.shared_slots
        context = ContextInsertion(tree, namespace, table, plan, num_computed=1)
        tail = TailInsertion(tree, namespace, table, plan, context, num_computed=1)
        tokens = to_key(np.array(prompt.task + answer))
        for stop in (*stops, rows):
            for offer in (
                context.offer(min(stop, prompt.num_tokens), slots[: min(stop, prompt.num_tokens)]),
                tail.offer(tokens, slots[table.task_start : max(stop, table.task_start)]),
            ):
                nodes += offer.taken
                for duplicate in offer.duplicates:
                    at = slice(duplicate.row, duplicate.row + len(duplicate.own))
                    assert slots[at].tolist() == duplicate.own.tolist()
                    slots[at] = duplicate.cached
            check_tree(tree)
        tree.touch(dict.fromkeys(nodes))
        tree.unlock(nodes)
        check_tree(tree)
        keys = self.keys(prompt, prompt.task + answer, namespace)
        if len(keys) >= MIN_TAIL_TOKENS or plan.num_tail:
            for key, slot in zip(keys, slots[table.task_start :].tolist(), strict=True):
                assert self.held.setdefault(key, slot) == slot
            assert tail.num_owned == len(keys)
        else:
            assert tail.num_owned == 0
        return plan

    @staticmethod
    def keys(prompt: TreePrompt, tokens: list[int], namespace: str = "ns") -> list[Key]:
        context = (namespace, *map(repr, (prompt.system, prompt.trees)))
        return [(*context, *tokens[: stop + 1]) for stop in range(len(tokens))]


TREES: list[Tree] = [([10, 11], [([12], []), ([13, 14], [])]), ([20, 21], []), ([10, 15], [])]

contexts = st.sampled_from(
    [
        ([1, 2], TREES[:2]),
        ([1, 2], TREES[1::-1]),  # the same facts in another order
        ([1, 2], TREES[:1]),
        ([1, 2], [([10, 11], [([12], []), ([13, 16], [])]), TREES[1]]),  # one other token
        ([1, 2], TREES),  # two rows that begin alike
        ([], TREES[1:2]),
        ([1, 2], [([10, 11, 12], []), ([20, 21], [])]),
        ([1, 2], [([10, 11], [([12], [])]), ([20, 21], [])]),  # as the one before, cut elsewhere
    ]
)
tails = st.lists(st.integers(30, 31), min_size=1, max_size=LONG + 6)
turns = st.tuples(contexts, tails, tails, st.sampled_from("ab"))


@settings(max_examples=150, deadline=None)
@given(st.lists(turns, min_size=1, max_size=6), st.data())
def test_a_tail_is_found_behind_its_exact_context_and_nowhere_else(
    given_turns: list[Any], data: st.DataObject
) -> None:
    server = Server()
    for (system, trees), task, answer, namespace in given_turns:
        prompt = TreePrompt(system, trees, task)
        expected: list[int] = []
        for key in server.keys(prompt, task[:-1], namespace):
            if key not in server.held:
                break
            expected.append(server.held[key])
        look = look_up(server.tree, server.tree.root(namespace), make_table(prompt), num_tiers=0)
        plan = server.plan(prompt, namespace)
        assert (plan.num_tail, plan.num_tail_loaded) == (len(expected), 0)
        assert plan.shared_slots[plan.num_shared :].tolist() == expected
        assert look.tail == len(expected)
        assert plan.num_missed == 0 or not expected
        stops = data.draw(st.lists(st.integers(plan.num_hits, prompt.num_tokens), max_size=3))
        served = server.serve(prompt, answer, namespace, tuple(sorted(stops)))
        assert served.order[prompt.num_context :].tolist() == list(
            range(prompt.num_context, prompt.num_tokens)
        )
        if data.draw(st.booleans()):
            server.evict(data.draw(st.integers(1, 30)))
    assert server.tree.num_locked == 0


def conversation(*lens: int) -> list[TreePrompt]:
    """Prompts over one context whose tails grow by so many tokens."""
    stops = np.cumsum(lens).tolist()
    return [TreePrompt([1, 2], TREES[:2], list(range(100, 100 + stop))) for stop in stops]


def test_a_conversation_computes_its_new_turn_only() -> None:
    server = Server()
    first, second, third = conversation(LONG, 5, 7)
    server.serve(first, [])
    assert server.plan(second).num_tail == LONG
    server.serve(second, [])
    plan = server.plan(third)
    assert (plan.num_missed, plan.num_tail, third.num_tokens - plan.num_context) == (0, 21, 28)


def test_nothing_of_a_tail_is_found_while_the_context_misses_a_token() -> None:
    server = Server()
    (prompt,) = conversation(LONG)
    server.serve(prompt, [])
    whole = server.plan(prompt)
    assert whole.num_tail == LONG - 1
    wider = TreePrompt([1, 2], [*TREES[:2], ([40], [])], prompt.task)
    server.serve(wider, [])
    for other in (wider, prompt):
        assert server.plan(other).num_tail == LONG - 1
    wider.trees[2][0].append(41)
    assert server.plan(TreePrompt([1, 2], wider.trees, prompt.task)).num_tail == 0


def test_a_short_tail_is_not_begun_and_a_begun_one_goes_on() -> None:
    server = Server()
    short, long = conversation(LONG - 1, 1)
    server.serve(short, [])
    assert server.plan(short).num_tail == 0
    assert [root.is_tail for root in server.tree.roots()] == [False]
    server.serve(long, [])
    assert server.plan(short).num_tail == LONG - 2
    (prompt,) = conversation(2)
    server.serve(prompt, [7])  # one token of its own behind two that are cached
    assert server.plan(TreePrompt([1, 2], TREES[:2], [100, 101, 7, 8])).num_tail == 3


@pytest.mark.parametrize("layout", ["staggered", "sequential"])
def test_layouts_that_move_keys_have_no_tail(layout: str) -> None:
    prompt = TreePrompt([1, 2], TREES[:2], list(range(100, 130)), layout)
    table = make_table(prompt)
    assert table.tail_key == b""
    server = Server()
    assert table.tail_root(server.tree, server.tree.root("ns")) is None
    assert server.plan(prompt).num_tail == 0


def test_a_tail_that_was_evicted_is_loaded_behind_its_context() -> None:
    server = Server()
    first, second = conversation(LONG, 4)
    server.serve(first, [])
    server.evict(10**6)
    assert server.tree.num_tokens == 0
    plan = server.plan(second, allow_load=True)
    assert (plan.num_loaded, plan.num_tail_loaded, plan.num_missed) == (plan.num_context, LONG, 0)
    assert plan.num_moved == plan.num_context + LONG
    loaded = [token for node in plan.loaded for token in np.frombuffer(node.key, "<i4").tolist()]
    assert loaded[-LONG:] == first.task
    assert server.plan(second).num_tail == 0  # nor is it, where nothing may be loaded


def test_rows_that_begin_alike_are_loaded_once_and_before_the_tail() -> None:
    server = Server()
    prompt = TreePrompt([1], [([5, 6, 7], []), ([5, 6, 8], [])], list(range(100, 100 + LONG)))
    server.serve(prompt, [])
    server.evict(10**6)
    plan = server.plan(prompt, allow_load=True)
    assert (plan.num_loaded, len(plan.loaded_again), plan.num_tail_loaded) == (7, 2, LONG - 1)
    assert sum(node.num_tokens for node in plan.loaded) == 5 + LONG - 1


def test_the_key_tells_every_difference_of_a_context() -> None:
    def key(tokens: list[int], system_len: int, lens: list[int], parents: list[int], joins: Any):
        forest = Forest.make(len(tokens), system_len, lens, parents, joins)
        return make_tail_key(to_key(np.array(tokens)), forest, "tree")

    tokens = [1, 2, 3, 4, 5, 9]
    keys = [
        key(tokens, 1, [2, 2], [-1, -1], None),
        key(tokens, 1, [2, 2], [-1, 0], None),
        key(tokens, 1, [2, 2], [-1, -1], {1: [0]}),
        key(tokens, 1, [1, 3], [-1, -1], None),
        key(tokens, 1, [4], [-1], None),
        key(tokens, 3, [2], [-1], None),
        key(tokens, 5, [], [], None),
        key([1, 2, 3, 5, 4, 9], 1, [2, 2], [-1, -1], None),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == key([*tokens[:5], 7, 8], 1, [2, 2], [-1, -1], None)


def test_look_ahead_wants_the_tail_too_and_leaves_nothing() -> None:
    server = Server()
    first, second = conversation(LONG, 4)
    server.serve(first, [])
    lookahead, tree = Lookahead(server.tree), server.tree
    lookahead.enter("waiting", "ns", make_table(second))
    tail = make_table(second).tail_root(tree, tree.root("ns"))
    assert tail is not None
    wanted = [n for n in tree.nodes() if n.waiters and n.root is tail]
    assert sum(node.num_tokens for node in wanted) == LONG + 4
    check_tree(tree)
    assert server.plan(second).num_tail == LONG
    lookahead.leave("waiting")
    check_tree(tree)
    assert all(node.slots is not None for node in tree.nodes())


def test_looking_leaves_no_root_behind() -> None:
    server = Server()
    (prompt,) = conversation(LONG)
    table: SegmentTable = make_table(prompt)
    for _ in range(3):
        server.plan(prompt)
        look_up(server.tree, server.tree.root("ns"), table)
    assert server.tree.roots() == []
