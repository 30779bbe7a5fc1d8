# SPDX-License-Identifier: Apache-2.0
"""An entity has the same paths in every request, and a pool of entities repeats by its seed."""

from __future__ import annotations

import pytest

pytest.importorskip("ahocorasick", reason="needs the extra `graph`")

from depcache.graph.base import GraphStore
from depcache.graph.retrieval import Retriever
from eval.workloads.graphs import hold
from eval.workloads.paths import NUM_HOPS, NUM_PATHS, EntityPaths, draw_pool
from eval.workloads.patterns import make_workload

NUM_NODES = 50


@pytest.fixture
def store() -> GraphStore:
    edges = ((i, (i * 7 + j) % NUM_NODES) for i in range(NUM_NODES) for j in range(9))
    return hold((f"e{i}", "r", f"e{j}") for i, j in edges)


def test_an_entity_has_the_same_paths_in_every_request(store: GraphStore) -> None:
    requests = make_workload("zipfian", store.names(), 20, num_entities=4)
    found, again = EntityPaths(store), EntityPaths(store)
    # Found together with others, as a server's user finds them.
    retriever = Retriever(store, pruner="none")
    for entities in requests:
        for entity in entities:
            assert 0 < len(found.of(entity)) <= NUM_PATHS
            assert all(path[0] == entity for path in found.of(entity))
            assert found.of(entity) == again.of(entity)
        together = retriever.retrieve(
            "What of them?", entities=entities, num_hops=NUM_HOPS, num_paths=NUM_PATHS
        )
        assert together.paths == tuple(path for entity in entities for path in found.of(entity))


@pytest.mark.parametrize(("num_hops", "num_paths"), [(1, 3), (1, 30), (3, 5)])
def test_paths_are_as_few_and_short_as_asked(
    store: GraphStore, num_hops: int, num_paths: int
) -> None:
    paths = EntityPaths(store, num_hops=num_hops, num_paths=num_paths).of("e3")
    assert 0 < len(paths) <= num_paths
    assert max(len(path) for path in paths) <= 2 * num_hops + 1


def test_an_unknown_entity_has_no_paths(store: GraphStore) -> None:
    assert EntityPaths(store).of("nobody") == ()


def test_a_pool_is_drawn_by_its_seed(store: GraphStore) -> None:
    pool = draw_pool(store, 20, seed=1)
    assert len(set(pool)) == 20
    assert set(pool) <= set(store.names())
    assert pool == draw_pool(store, 20, seed=1) != draw_pool(store, 20, seed=2)
