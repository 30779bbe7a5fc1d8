# SPDX-License-Identifier: Apache-2.0
"""Retrieval over both stores: odd graphs and odd names give paths or a sentence, never a crash."""

from __future__ import annotations

import pytest

pytest.importorskip("ahocorasick", reason="needs the extra `graph`")
pytest.importorskip("rapidfuzz", reason="needs the extra `graph`")

from depcache.graph import GraphStore
from depcache.graph.retrieval import Retriever
from tests.helpers.graphs import ODD_NAMES, SMALL


def retriever_of(store: GraphStore) -> Retriever:
    return Retriever(store, pruner="none")


def test_an_unknown_entity_is_told_with_the_nearest_names(store: GraphStore) -> None:
    store.upsert([*SMALL, ("Marie Curie", "born in", "Warsaw")])
    retriever = retriever_of(store)
    found = retriever.retrieve("Who was Mario Curio, then?", entities=["Mario Curio"])
    assert found.entities == found.paths == ()
    [note] = found.notes
    assert note == "the graph has no entity 'Mario Curio': the nearest names are 'Marie Curie'"
    found = retriever.retrieve("Who was Maria Kuri?")
    assert found.paths == ()
    assert "names no entity" in found.notes[0] and "'Marie Curie'" in found.notes[0]
    # Beside a known one it is told, and the known one is answered.
    found = retriever.retrieve("?", entities=["Nobody at all", "Oslo"])
    assert found.entities == ("Oslo",) and found.paths
    assert "'Nobody at all'" in found.notes[0]


def test_an_empty_graph_says_that_it_names_nothing(store: GraphStore) -> None:
    retriever = retriever_of(store)
    found = retriever.retrieve("Who is Ann?")
    assert found.paths == () and found.notes == ("the question names no entity of the graph",)
    found = retriever.retrieve("?", entities=["Ann"])
    assert found.paths == () and found.notes == ("the graph has no entity 'Ann'",)
    store.upsert(SMALL)
    assert retriever.retrieve("Who is Ann?").entities == ("Ann",)
    store.remove(SMALL)
    assert retriever.retrieve("Who is Ann?").paths == ()


@pytest.mark.parametrize("hops", [1, 2, 3, 5])
def test_paths_through_cycles_end_and_meet_nobody_twice(store: GraphStore, hops: int) -> None:
    ring = [(f"n{i}", "next", f"n{(i + 1) % 4}") for i in range(4)]
    store.upsert([*ring, ("n0", "twin", "n1"), ("n1", "twin", "n0")])
    paths = retriever_of(store).retrieve("?", entities=["n0"], num_hops=hops).paths
    assert paths
    for path in paths:
        assert len(path) // 2 <= hops
        assert len(set(path[::2])) == len(path[::2])


def test_self_loops_are_in_no_path_and_stop_none(store: GraphStore) -> None:
    store.upsert([("a", "likes", "a"), ("a", "knows", "b"), ("b", "likes", "b")])
    assert retriever_of(store).retrieve("?", entities=["a"]).paths == (("a", "knows", "b"),)
    store.upsert([("alone", "likes", "alone")])
    found = retriever_of(store).retrieve("?", entities=["alone"])
    assert found.entities == ("alone",) and found.paths == ()


def test_a_triple_that_was_given_often_is_one_path_and_parallel_edges_are_several(
    store: GraphStore,
) -> None:
    store.upsert([("a", "r", "b")] * 3 + [("a", "s", "b"), ("b", "r", "a")])
    store.upsert([("a", "r", "b")])
    assert retriever_of(store).retrieve("?", entities=["a"]).paths == (
        ("a", "inverse of r", "b"),
        ("a", "r", "b"),
        ("a", "s", "b"),
    )


def test_odd_names_are_linked_walked_and_come_back_as_they_are(store: GraphStore) -> None:
    triples = [(name, f"is {name}", f"hub of {name}") for name in ODD_NAMES]
    store.upsert(triples)
    retriever = retriever_of(store)
    for triple in triples:
        found = retriever.retrieve("?", entities=[triple[0]])
        assert found.paths == (triple,)
        assert triple[0] in retriever.retrieve(f"What is {triple[0]} ?").entities
    assert sorted(store.triples()) == sorted(triples)


def test_both_stores_give_the_same_paths_in_the_same_order(
    store: GraphStore,
) -> None:
    triples = [(f"n{i % 13}", f"r{i % 3}", f"n{(i * 7 + 3) % 17}") for i in range(60)]
    reference = Retriever("networkx:", pruner="none")
    reference.store.upsert(reversed(triples))
    store.upsert(triples)
    for hops in (1, 2, 3):
        for name in ("n0", "n5", "n16"):
            found = retriever_of(store).retrieve("?", entities=[name], num_hops=hops)
            assert found.paths == reference.retrieve("?", entities=[name], num_hops=hops).paths
