# SPDX-License-Identifier: Apache-2.0
"""What is remembered of a request: positions of its rows, its report, and what is forgotten."""

from __future__ import annotations

import numpy as np
import pytest

from depcache.cache import KVTree
from depcache.cache.radix import to_key
from depcache.plan import plan_request
from depcache.prompt.wire import WireIds
from sglang_patches.requests.masses import OVERHEADS
from sglang_patches.requests.state import FirstSlice, RequestState, to_log
from sglang_patches.requests.tenants import Namespace
from tests.helpers.insertion import cache_context
from tests.helpers.prompts import LAYOUTS, TreePrompt

pytestmark = pytest.mark.sglang

TREES = [([5, 6], [([7], []), ([8, 9], [])]), ([10, 11, 12], [])]


def make_state(layout: str = "tree") -> tuple[TreePrompt, RequestState]:
    prompt = TreePrompt([1, 2, 3], TREES, [20, 21], layout)
    wire = WireIds.model_validate(prompt.params())
    return prompt, RequestState.make(np.array(prompt.tokens), wire, Namespace(None, layout))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_have_the_positions_of_their_tokens_and_generated_ones_follow(layout: str) -> None:
    prompt, state = make_state(layout)
    tree = KVTree()
    cache_context(tree, state.namespace, make_state(layout)[1].table)
    plan = plan_request(tree, tree.root(state.namespace), state.table)
    state.start(tree, plan)
    expected = prompt.positions_with(3)
    expected[: prompt.num_tokens] = expected[plan.order]
    for start, stop in ((0, prompt.num_tokens + 3), (4, 9), (prompt.num_tokens + 1, len(expected))):
        assert state.row_positions(start, stop).tolist() == expected[start:stop].tolist()


def test_the_report_adds_up_to_the_prompt() -> None:
    prompt, state = make_state()
    tree = KVTree()
    state.start(tree, plan_request(tree, tree.root(state.namespace), state.table))
    report = state.report()
    assert report["missed"] == report["context_tokens"] == prompt.num_context
    parts = ("shared", "shifted", "loaded", "missed", "plain")
    assert sum(report[name] for name in parts) == report["prompt_tokens"] == prompt.num_tokens
    assert "fallback_reason" not in to_log(report) and "layout='tree'" in to_log(report)


def test_only_the_layout_with_one_position_a_node_is_exact() -> None:
    assert [make_state(layout)[1].is_exact for layout in LAYOUTS] == [True, False, False]


def test_a_request_that_comes_back_knows_its_prompt_and_no_plan() -> None:
    _, state = make_state()
    tree = KVTree()
    state.start(tree, plan_request(tree, tree.root(state.namespace), state.table))
    state.is_running, state.num_private, state.num_loaded = True, 3, 2
    table = state.table
    state.forget_plan()
    assert state.plan is None and state.insertion is None and state.pending is None
    assert (state.num_private, state.num_loaded, state.is_running) == (0, 0, False)
    assert state.handle.nodes == [] and state.table is table


def test_a_report_goes_with_the_first_message_even_if_that_has_no_token() -> None:
    told = FirstSlice(["report"])
    assert told[0:0] == ["report"] and told[:5] == ["report"]
    assert told[1:4] == [] and told[0] == "report"


def test_nodes_of_a_row_are_known_with_the_share_of_it_that_is_computed_again() -> None:
    prompt, plain = make_state()
    assert plain.node_overheads() == {}
    told = {OVERHEADS: [0.25, 0.5]}
    wire = WireIds.model_validate(prompt.params())
    state = RequestState.make(np.array(prompt.tokens), wire, plain.namespace, told)
    tree = KVTree()
    cache_context(tree, state.namespace, state.table)
    plan = plan_request(tree, tree.root(state.namespace), state.table)
    state.start(tree, plan)
    found = {node.key: share for node, share in state.node_overheads().items()}
    keys = [to_key(np.array(tokens)) for tokens in ([1, 2, 3], [5, 6], [7], [8, 9], [10, 11, 12])]
    shares = dict(zip(keys, (0.0, 0.25, 0.25, 0.25, 0.5), strict=True))
    assert {key: found[key] for key in keys} == shares
