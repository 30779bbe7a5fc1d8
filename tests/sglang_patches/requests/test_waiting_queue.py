# SPDX-License-Identifier: Apache-2.0
"""The cache's view of the waiting queue, with SGLang's own requests in the list."""

from __future__ import annotations

from typing import Any

import pytest

from depcache.cache import KVTree, make_policy
from depcache.errors import PromptError
from depcache.plan import make_scheduler
from tests.helpers.rows import set_row

pytestmark = pytest.mark.sglang


def make_req(number: int, tokens: list[int]) -> Any:
    from array import array

    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    return Req(f"r{number}", "", array("q", tokens), SamplingParams(max_new_tokens=4))


def make_queue(tree: KVTree, order: str | None = None, make_state: Any = None) -> Any:
    from sglang_patches.requests.waiting_queue import WaitingQueue

    scheduler = None if order is None else make_scheduler(order, tree)
    return WaitingQueue(tree, make_state or (lambda req: None), scheduler)


def wanted_tokens(tree: KVTree) -> int:
    return sum(node.num_tokens for node in tree.nodes() if node.waiters)


@pytest.fixture
def tree() -> KVTree:
    return KVTree(make_policy("lacr"))


def test_requests_that_wait_together_are_seen_at_once(tree: KVTree) -> None:
    queue = make_queue(tree)
    queue.sync([make_req(0, [1, 2, 3]), make_req(1, [1, 2, 4, 5])])
    assert len(queue) == 2
    assert wanted_tokens(tree) == 2 + 1 + 2
    assert sorted(tree.rank.values()) == [0, 1]


def test_a_lone_request_is_looked_at_only_when_it_has_to_wait(tree: KVTree) -> None:
    queue = make_queue(tree)
    req = make_req(0, [1, 2, 3])
    queue.sync([req])
    assert (len(queue), wanted_tokens(tree)) == (0, 0)
    queue.sync([req])
    assert (len(queue), wanted_tokens(tree)) == (1, 3)


def test_nothing_is_left_of_requests_that_ran_or_were_aborted(tree: KVTree) -> None:
    queue = make_queue(tree, "lsp")
    ran, aborted, waits = (make_req(i, [i + 1, 7, 8]) for i in range(3))
    queue.sync([ran, aborted, waits])
    set_row(ran, 0)  # SGLang gives it one when it runs
    queue.sync([waits])
    assert wanted_tokens(tree) == 3
    queue.finished(ran)
    queue.sync([])
    assert (len(queue), tree.num_nodes, tree.rank) == (0, 0, {})


def test_those_that_are_aborted_last_are_forgotten_though_no_pass_follows(tree: KVTree) -> None:
    """SGLang looks at its queue no more when it is empty; only its abort is hooked."""
    from types import SimpleNamespace

    from sglang_patches.hooks.scheduler_abort import release_orphans

    queue = make_queue(tree, "lsp")
    queue.sync([make_req(0, [1, 2]), make_req(1, [3, 4])])
    cache = SimpleNamespace(is_depcache=True, forget_gone=queue.forget_gone)
    release_orphans(None, SimpleNamespace(tree_cache=cache, waiting_queue=[]))
    assert (len(queue), tree.num_nodes, tree.rank) == (0, 0, {})


def test_one_that_is_aborted_is_forgotten_by_its_id(tree: KVTree) -> None:
    queue = make_queue(tree, "lsp")
    aborted, waits = make_req(0, [1, 2]), make_req(1, [3, 4, 5])
    queue.sync([aborted, waits])
    queue.forget(aborted.rid)
    queue.forget("never seen")
    assert (len(queue), wanted_tokens(tree)) == (1, 3)


def test_a_retracted_request_comes_back(tree: KVTree) -> None:
    queue = make_queue(tree, "lsp")
    first, second = make_req(0, [1, 2]), make_req(1, [3, 4])
    queue.sync([first, second])
    set_row(first, 0)
    queue.sync([second])
    queue.finished(first)
    set_row(first, None)
    waiting = [second, first]
    queue.sync(waiting)
    assert len(queue) == 2
    assert {id(req) for req in waiting} == {id(first), id(second)}


def test_a_request_that_starts_and_ends_between_two_looks_is_done_with(tree: KVTree) -> None:
    queue = make_queue(tree, "lsp")
    quick, other = make_req(0, [1, 2]), make_req(1, [3, 4])
    queue.sync([quick, other])
    queue.finished(quick)
    assert len(queue) == 1
    queue.sync([other])
    assert wanted_tokens(tree) == 2


def test_those_that_share_go_together_in_sglangs_own_list(tree: KVTree) -> None:
    queue = make_queue(tree, "lsp")
    waiting = [make_req(0, [1, 2, 3, 4]), make_req(1, [5, 6, 1, 2]), make_req(2, [5, 6, 7, 8])]
    alone, one, other = waiting
    queue.sync(waiting)
    assert waiting == [one, other, alone]
    assert [tree.rank[id(req)] for req in waiting] == [0, 1, 2]


def test_a_request_that_cannot_be_prepared_is_left_to_its_error(tree: KVTree) -> None:
    def refuse(req: Any) -> None:
        if req.rid == "r1":
            raise PromptError("wrong")

    queue = make_queue(tree, "lsp", refuse)
    waiting = [make_req(0, [1, 2]), make_req(1, [3, 4])]
    queue.sync(waiting)
    assert len(queue) == 1
    assert [req.rid for req in waiting] == ["r1", "r0"]


def test_a_policy_that_looks_back_only_costs_nothing() -> None:
    tree = KVTree(make_policy("lru"))
    queue = make_queue(tree)
    queue.sync([make_req(0, [1, 2]), make_req(1, [3, 4])])
    assert (len(queue), tree.num_nodes) == (0, 0)


def test_clearing_forgets_everyone(tree: KVTree) -> None:
    queue = make_queue(tree, "lsp")
    reqs = [make_req(i, [i, 2]) for i in range(3)]
    queue.sync(reqs)
    set_row(reqs[0], 0)
    queue.sync(reqs[1:])
    queue.clear()
    tree.reset()
    queue.sync(reqs[1:])
    assert len(queue) == 2
