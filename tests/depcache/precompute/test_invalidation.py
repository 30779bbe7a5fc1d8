# SPDX-License-Identifier: Apache-2.0
"""Invalidation after a change of the graph: which trees, what is sent, and the state."""

from __future__ import annotations

import httpx
import pytest

from depcache.errors import ConfigError, PromptError, ServerError
from depcache.graph.networkx_store import NetworkXStore
from depcache.precompute import (
    GraphSource,
    Invalidation,
    Precomputer,
    PrecomputeSettings,
    find_trees,
    invalidate,
    select_entities,
)
from tests.depcache.precompute.fake import FakeCache, refused

# A chain, so that what is within reach is plain to see: n0 - n1 - n2 - ... - n11.
TRIPLES = [(f"n{i}", "next", f"n{i + 1}") for i in range(11)]
NONE = PrecomputeSettings(pruner="none")


@pytest.fixture
def store() -> NetworkXStore:
    store = NetworkXStore()
    store.upsert(TRIPLES)
    return store


@pytest.fixture
def server(store, tmp_path) -> FakeCache:
    """A server that has everything, by the state in `tmp_path`."""
    server = FakeCache()
    precompute(server, store, tmp_path / "state")
    return server


def precompute(server, store, state, settings=NONE) -> set[str]:
    """The entities that had to be computed."""
    num_sent = len(server.sent)
    with server.client() as client:
        job = Precomputer(GraphSource(store, settings), client, state=state)
        job.run(job.plan(select_entities(store, "all")), num_workers=1)
    return {path[0] for paths in server.sent[num_sent:] for path in paths}


def call(server, store, entities, settings=NONE, **options) -> Invalidation:
    with server.client() as client:
        return invalidate(store, client, entities, settings, **options)


def test_a_new_edge_takes_just_the_trees_within_reach(store, server) -> None:
    before = set(server.cached)
    change = store.upsert([("n3", "likes", "n9")])
    found = call(server, store, change.entities)
    expected = {"n2", "n3", "n4", "n8", "n9", "n10"}
    assert set(found.entities) == expected
    gone = before - server.cached
    assert gone == {path for path in before if path and path[0] in expected}
    assert found.tokens == {"device": len(gone)}
    assert (found.num_done, found.num_gone, found.num_refused) == (6, 0, 0)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_deleted_edge_takes_the_same_trees_before_it_is_gone_and_after(
    store, server, when
) -> None:
    before = set(server.cached)
    # n10 - n11 is the last edge of n11, which leaves the graph with it.
    gone = [("n4", "next", "n5"), ("n10", "next", "n11")]
    ends = {"n4", "n5", "n10", "n11"}
    if when == "after":
        assert store.remove(gone).entities == ends
    found = call(server, store, ends)
    expected = {"n3", "n4", "n5", "n6", "n9", "n10", "n11"}
    assert set(found.entities) == expected
    assert found.num_gone == (when == "after")
    assert before - server.cached == {path for path in before if path and path[0] in expected}


def test_what_was_invalidated_is_computed_again_and_nothing_else(store, server, tmp_path) -> None:
    state = tmp_path / "state"
    # Two paths an entity: the change leaves the chosen paths of most trees as they were.
    few = PrecomputeSettings(pruner="none", num_paths=2)
    precompute(server, store, state, few)
    change = store.upsert([("n3", "zz", "n9")])
    before = state.read_bytes()
    looked = find_trees(store, change.entities, 2, state=state)
    assert looked.num_forgotten == 6 and state.read_bytes() == before
    found = call(server, store, change.entities, few, state=state)
    assert found.num_forgotten == 6
    assert precompute(server, store, state, few) == set(found.entities)
    assert precompute(server, store, state, few) == set()


def test_a_server_that_fails_half_way_leaves_nothing_done_that_is_not_there(
    store, server, tmp_path
) -> None:
    server.on_invalidate = lambda paths: httpx.Response(500, json={"message": "oops"})
    with pytest.raises(ServerError, match=r"oops.*0 of 3 entities are done"):
        call(server, store, ["n5"], state=tmp_path / "state")
    assert precompute(server, store, tmp_path / "state") == {"n4", "n5", "n6"}


def test_many_entities_share_a_request_and_none_is_longer_than_its_bound(store) -> None:
    server, num = FakeCache(), 3000
    store.upsert([("hub", "r", f"somebody {i}") for i in range(num)])
    seen: list[int] = []
    found = call(server, store, ["hub"], on_progress=lambda now: seen.append(now.num_done))
    assert len(found.entities) == num + 1 == found.num_done == seen[-1]
    assert {len(path) for paths in server.invalidated for path in paths} == {1}
    sizes = [sum(len(path[0]) for path in paths) for paths in server.invalidated]
    assert max(sizes) <= 10_000 and 2 < len(sizes) < 10


def test_one_refused_name_is_told_and_the_others_are_invalidated(store, server) -> None:
    server.on_invalidate = lambda paths: refused("no token") if ("n4",) in paths else None
    found = call(server, store, ["n5"])
    assert (found.num_done, found.num_refused) == (2, 1)
    assert found.problems[0].startswith("n4: ") and "no token" in found.problems[0]
    assert not any(path and path[0] in ("n5", "n6") for path in server.cached)


def test_what_stands_before_the_facts_and_the_tenant_are_sent(store, server) -> None:
    messages = [{"role": "user", "content": "Context:{{graph_context}}\nQuery: -"}]
    settings = PrecomputeSettings(
        num_hops=1, pruner="none", messages=messages, fields={"cache_salt": "tenant"}
    )
    call(server, store, ["n5"], settings)
    body = server.bodies[-1]
    assert body["messages"] == [{"role": "user", "content": "Context:\nn5\nQuery: -"}]
    assert body["cache_salt"] == "tenant"


def test_nothing_to_do_asks_nobody(store, server) -> None:
    assert call(server, store, []).entities == ()
    assert server.invalidated == []


def test_names_and_states_that_are_none_are_refused_before_anything_happens(
    store, server, tmp_path
) -> None:
    with pytest.raises(PromptError, match="list of entities"):
        call(server, store, ["n1", " "])
    other = tmp_path / "facts.tsv"
    other.write_text("a\tr\tb\n")
    for state in (other, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match="no state of a precomputation"):
            call(server, store, ["n1"], state=state)
    assert other.read_text() == "a\tr\tb\n" and not (tmp_path / "nothing").exists()
    assert server.invalidated == []


def test_a_server_without_depcache_says_so(store) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404, json={"detail": "Not Found"})

    server = FakeCache()
    server.answer = answer  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ServerError, match="without DepCache"):
        call(server, store, ["n1"])
