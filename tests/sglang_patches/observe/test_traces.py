# SPDX-License-Identifier: Apache-2.0
"""The watch ends by itself, and a trace has all that the page shows."""

from __future__ import annotations

import numpy as np
import pytest

from depcache.cache import KVTree
from depcache.plan import plan_request
from depcache.prompt.wire import WireIds
from tests.helpers.insertion import cache_context
from tests.helpers.prompts import TreePrompt

pytestmark = pytest.mark.sglang


def test_a_watch_lasts_as_long_as_somebody_asks() -> None:
    from sglang_patches.observe.traces import Watch

    now = 0.0
    watch = Watch(lambda: now)
    assert not watch.is_on
    watch.keep_on(10)
    now = 9
    assert watch.is_on
    watch.keep_on(10)
    now = 18
    assert watch.is_on
    now = 19
    assert not watch.is_on
    watch.keep_on(10)
    watch.keep_on(0)
    assert not watch.is_on


def test_a_trace_tells_tokens_structure_and_sources() -> None:
    from sglang_patches.observe.traces import make_trace, sources_of
    from sglang_patches.requests.state import RequestState
    from sglang_patches.requests.tenants import Namespace

    prompt = TreePrompt([1, 2], [([3, 4], [([5], []), ([6, 7], [])])], [8])
    wire = WireIds(
        depcache_version=1,
        depcache_system_len=2,
        depcache_segment_lens=prompt.segment_lens,
        depcache_segment_parents=prompt.segment_parents,
    )
    tokens, namespace = np.array(prompt.tokens, np.int64), Namespace("a tenant")
    state = RequestState.make(tokens, wire, namespace)
    tree = KVTree()
    earlier = TreePrompt([1, 2], [([3, 4], [([5], [])])], [8])
    from tests.depcache.plan.test_request import make_table

    cache_context(tree, namespace, make_table(earlier))
    state.start(tree, plan_request(tree, tree.root(namespace), state.table))
    trace = make_trace(state)
    assert np.frombuffer(trace["tokens"], "<i4").tolist() == prompt.tokens
    assert np.frombuffer(trace["lens"], "<i4").tolist() == prompt.segment_lens
    assert np.frombuffer(trace["parents"], "<i4").tolist() == prompt.segment_parents
    assert (trace["system_len"], trace["tenant"]) == (2, "a tenant")
    shared, missed = [2, 2, 1, 0], [0, 0, 0, 2]
    assert sources_of(trace).tolist() == [
        [num, 0, 0, other] for num, other in zip(shared, missed, strict=True)
    ]
