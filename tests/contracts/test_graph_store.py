# SPDX-License-Identifier: Apache-2.0
"""The contract of a graph store, over both stores and against the real FalkorDB."""

from __future__ import annotations

import random

import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depcache.errors import PromptError
from depcache.graph import Change, Edge, GraphStore
from depcache.graph.base import rank_of
from depcache.graph.expansion import expand
from tests.contracts.conftest import StoreMaker
from tests.helpers.graphs import ODD_NAMES, SMALL, edges_ref


def test_an_empty_graph_answers_with_nothing(store: GraphStore) -> None:
    assert store.version() == 0
    assert store.names() == []
    assert store.aliases() == {}
    assert list(store.triples()) == []
    assert store.neighbours(["Ann"]) == {}
    assert store.counts().triples == store.counts().entities == store.counts().relations == 0
    assert store.remove(SMALL) == Change(0, frozenset(), 0)


def test_triples_come_back(store: GraphStore) -> None:
    change = store.upsert(SMALL)
    assert change.num_triples == 5
    assert change.entities == {"Ann", "Bob", "Acme", "Oslo"}
    assert set(store.triples()) == set(SMALL)
    assert store.names() == ["Acme", "Ann", "Bob", "Oslo"]
    counts = store.counts()
    assert (counts.triples, counts.entities, counts.relations) == (5, 4, 3)
    near = store.neighbours(["Nobody", "Acme", "Ann", "Acme"])
    assert list(near) == ["Acme", "Ann"]
    for name, found in near.items():
        assert list(found.edges) == edges_ref(set(SMALL), name)
        assert not found.is_sampled


def test_the_same_triples_again_change_nothing(store: GraphStore) -> None:
    version = store.upsert([*SMALL, *SMALL]).version
    assert version > 0
    assert store.upsert(SMALL, batch_size=2) == Change(0, frozenset(), version)
    assert store.counts().triples == 5


def test_a_change_names_the_ends_of_new_triples_only(store: GraphStore) -> None:
    before = store.upsert(SMALL).version
    change = store.upsert([*SMALL, ("Oslo", "is in", "Norway")])
    assert change.num_triples == 1
    assert change.entities == {"Oslo", "Norway"}
    assert change.version == store.version() > before


def test_affected_entities_are_those_within_reach_of_the_change(store: GraphStore) -> None:
    rng = random.Random(0)
    triples = [(f"n{rng.randrange(60)}", "r", f"n{rng.randrange(60)}") for _ in range(70)]
    store.upsert(triples)
    undirected = nx.Graph([(h, t) for h, _, t in triples])
    for hops in (1, 2, 3):
        expected = set(nx.single_source_shortest_path_length(undirected, triples[0][0], hops - 1))
        assert store.find_affected([triples[0][0]], hops) == expected


few_triples = st.lists(
    st.tuples(*[st.sampled_from("abcdefgh"), st.sampled_from("rs"), st.sampled_from("abcdefgh")])
    .filter(lambda triple: triple[0] != triple[2])
    .map(tuple),
    max_size=9,
)


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(kept=few_triples, added=few_triples, removed=few_triples, num_hops=st.integers(1, 3))
def test_the_trees_that_a_change_is_in_are_the_same_seen_before_and_after(
    make_store: StoreMaker, kept: list, added: list, removed: list, num_hops: int
) -> None:
    store = make_store()
    store.upsert([*kept, *removed])

    def trees() -> dict[str, set]:
        found = expand(store, store.names(), num_hops)
        return {name: set(tree.paths) for name, tree in found.items()}

    before, old = trees(), set(store.triples())
    new = (old | set(added)) - set(removed)
    ends = {name for head, _, tail in old ^ new for name in (head, tail)}
    expected = store.find_affected(ends, num_hops)
    gone, came = store.remove(sorted(old - new)), store.upsert(sorted(new - old))
    assert gone.entities | came.entities == ends
    assert store.find_affected(ends, num_hops) == expected
    after = trees()
    names = before.keys() | after.keys()
    assert expected == {name for name in names if before.get(name) != after.get(name)}


def test_removed_triples_are_gone_and_lonely_entities_too(store: GraphStore) -> None:
    store.upsert(SMALL)
    change = store.remove([("Acme", "is in", "Oslo"), ("Acme", "is in", "Rome")])
    assert change.num_triples == 1
    assert change.entities == {"Acme", "Oslo"}
    assert store.names() == ["Acme", "Ann", "Bob"]
    assert set(store.triples()) == set(SMALL[:-1])


def test_names_are_data_whatever_they_hold(store: GraphStore) -> None:
    triples = {(name, other, "hub") for name in ODD_NAMES for other in ODD_NAMES[:3]}
    triples |= {("hub", name, name) for name in ODD_NAMES}
    store.upsert(sorted(triples))
    assert set(store.triples()) == triples
    assert set(store.names()) == {*ODD_NAMES, "hub"}
    for name, near in store.neighbours([*ODD_NAMES, "hub"]).items():
        assert list(near.edges) == edges_ref(triples, name)
    store.add_aliases({ODD_NAMES[0]: ODD_NAMES})
    assert store.aliases() == {ODD_NAMES[0]: sorted(ODD_NAMES)}
    assert store.remove(sorted(triples)).num_triples == len(triples)
    assert store.names() == []


names = st.text(min_size=1, max_size=12).filter(lambda s: bool(s.strip()) and "\0" not in s)
few_names = st.one_of(st.sampled_from(["a", "b", "A", "Ａ", "\u0041\u030a", "\u00c5"]), names)
triple_lists = st.lists(st.tuples(few_names, few_names, few_names), max_size=25)


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batches=st.lists(triple_lists, max_size=3), removed=st.randoms(use_true_random=False))
def test_any_triples_make_the_neighbourhoods_they_say(
    make_store: StoreMaker, batches: list, removed: random.Random
) -> None:
    store = make_store()  # an empty one for every example
    expected: set[tuple[str, str, str]] = set()
    for batch in batches:
        change = store.upsert(batch, batch_size=7)
        assert change.num_triples == len(set(batch) - expected)
        expected |= set(batch)
    gone = {triple for triple in sorted(expected) if removed.random() < 0.3}
    assert store.remove(sorted(gone)).num_triples == len(gone)
    expected -= gone
    assert set(store.triples()) == expected
    entities = {name for h, _, t in expected for name in (h, t)}
    assert store.names() == sorted(entities)
    near = store.neighbours(sorted(entities))
    assert {n: list(found.edges) for n, found in near.items()} == {
        name: edges_ref(expected, name) for name in entities
    }


@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(triples=triple_lists, limit=st.integers(1, 8))
def test_entities_come_in_the_order_of_their_edges(
    make_store: StoreMaker, triples: list, limit: int
) -> None:
    store = make_store()
    store.upsert([*triples, *((name, "is", "odd") for name in ODD_NAMES)])
    ends = [name for h, _, t in store.triples() for name in (h, t)]
    expected = sorted(set(ends), key=lambda name: (-ends.count(name), name))
    assert store.names_by_degree() == expected
    assert store.names_by_degree(limit) == expected[:limit]
    degrees = [near.num_edges for near in store.neighbours(expected).values()]
    assert degrees == sorted(degrees, reverse=True)


def test_an_empty_graph_has_no_most_connected_entity(store: GraphStore) -> None:
    assert store.names_by_degree() == store.names_by_degree(3) == []


def test_the_stamp_changes_with_the_triples_only(store: GraphStore) -> None:
    stamps = [store.stamp()]
    store.upsert(SMALL)
    stamps.append(store.stamp())
    store.neighbours(["Ann"])
    store.upsert(SMALL)
    assert store.stamp() == stamps[-1]
    store.upsert([("Oslo", "is in", "Norway")])
    stamps.append(store.stamp())
    store.remove([("Ann", "knows", "Bob")])
    stamps.append(store.stamp())
    assert len(set(stamps)) == 4


def test_cycles_self_loops_and_parallel_edges_are_kept(store: GraphStore) -> None:
    triples = {("a", "r", "b"), ("b", "r", "a"), ("a", "r", "a"), ("a", "s", "b"), ("a", "s", "a")}
    store.upsert(sorted(triples))
    assert set(store.triples()) == triples
    assert list(store.neighbours(["a"])["a"].edges) == edges_ref(triples, "a")
    assert store.remove([("a", "r", "a"), ("a", "s", "a")]).entities == {"a"}
    assert list(store.neighbours(["a"])["a"].edges) == [
        Edge("r", False, "b"),
        Edge("r", True, "b"),
        Edge("s", True, "b"),
    ]


def test_the_edges_of_a_hub_are_those_of_lowest_rank(store: GraphStore) -> None:
    triples = {("hub", f"r{i % 3}", f"n{i}") for i in range(300)}
    triples |= {(f"m{i}", "s", "hub") for i in range(300)} | {("hub", "self", "hub")}
    store.upsert(sorted(triples))
    near = store.neighbours(["hub", "n0"], 40)
    lowest = sorted(triples, key=rank_of)[:40]
    assert list(near["hub"].edges) == edges_ref(set(lowest), "hub")
    assert near["hub"].is_sampled and near["hub"].num_edges == 602
    assert not near["n0"].is_sampled
    # One more edge moves at most one out.
    store.upsert([("hub", "r", "one more")])
    after = store.neighbours(["hub"], 40)["hub"].edges
    assert len(set(near["hub"].edges) - set(after)) <= 1


def test_many_hubs_at_once_share_the_bound(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("depcache.graph.networkx_store.MAX_SCANNED_EDGES", 20)
    monkeypatch.setattr("depcache.graph.falkordb_store.MAX_SCANNED_EDGES", 20)
    store.upsert((f"hub{i}", "r", f"n{j}") for i in range(4) for j in range(50))
    near = store.neighbours([f"hub{i}" for i in range(4)], 5)
    assert [len(found.edges) for found in near.values()] == [5] * 4
    assert near == store.neighbours([f"hub{i}" for i in range(4)], 5)


def test_asking_again_gives_what_the_graph_holds_now(make_store: StoreMaker) -> None:
    store = make_store()
    rng = random.Random(1)
    expected: set[tuple[str, str, str]] = set()
    for _ in range(30):
        batch = {(f"n{rng.randrange(9)}", "r", f"n{rng.randrange(9)}") for _ in range(4)}
        if rng.random() < 0.5:
            store.upsert(sorted(batch))
            expected |= batch
        else:
            store.remove(sorted(batch))
            expected -= batch
        asked = [f"n{rng.randrange(9)}" for _ in range(5)]
        for bound in (None, 2, 100):
            near = store.neighbours(asked, bound)
            ends = {name for h, _, t in expected for name in (h, t)}
            assert list(near) == [name for name in dict.fromkeys(asked) if name in ends]
            for name, found in near.items():
                if not found.is_sampled:
                    assert list(found.edges) == edges_ref(expected, name)
            if rng.random() < 0.2:
                store.forget()
            assert store.neighbours(asked, bound) == near


def test_a_sample_does_not_depend_on_what_was_asked_before(
    make_store: StoreMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("depcache.graph.networkx_store.MAX_SCANNED_EDGES", 60)
    monkeypatch.setattr("depcache.graph.falkordb_store.MAX_SCANNED_EDGES", 60)
    store = make_store()
    triples = [(f"hub{i}", "r", f"n{j}") for i in range(4) for j in range(10 + 20 * i)]
    store.upsert(triples)
    hubs = [f"hub{i}" for i in range(4)]
    first = store.neighbours(hubs, 5)
    for some in (hubs[:1], hubs[1:3], hubs):
        alone = store.neighbours(some, 5)
        store.forget()
        assert store.neighbours(some, 5) == alone
    assert store.neighbours(hubs, 5) == first


def test_a_hub_with_100_000_edges_is_sampled_and_says_so(store: GraphStore) -> None:
    store.upsert(("hub", f"r{i % 7}", f"n{i}") for i in range(100_000))
    near = store.neighbours(["hub"], 1000)["hub"]
    assert near.is_sampled
    assert (len(near.edges), near.num_edges) == (1000, 100_000)
    assert near == store.neighbours(["hub"], 1000)["hub"]


def test_aliases_add_up_and_unknown_entities_are_told(store: GraphStore) -> None:
    store.upsert(SMALL)
    version = store.version()
    assert store.add_aliases({"Ann": ["Annie", "A."], "Zoe": ["Z."]}) == ["Zoe"]
    assert store.add_aliases({"Ann": ["Annie", "Anna"]}) == []
    assert store.aliases() == {"Ann": ["A.", "Anna", "Annie"]}
    assert store.counts().aliases == 3
    assert store.version() > version
    assert store.names() == ["Acme", "Ann", "Bob", "Oslo"]


@pytest.mark.parametrize(
    "bad",
    [
        ("a", "b"),
        ("a", "b", "c", "d"),
        "abc",
        ("a", "", "c"),
        ("a", "b", " \n"),
        ("a", None, "c"),
        ("a", 7, "c"),
        ("a", "nul\0", "c"),
        ("half \ud800", "b", "c"),
        None,
    ],
)
def test_a_malformed_triple_is_named_and_its_batch_is_not_stored(
    store: GraphStore, bad: object
) -> None:
    with pytest.raises(PromptError, match="triple 3"):
        store.upsert([*SMALL[:3], bad, SMALL[4]], batch_size=2)  # pyright: ignore[reportArgumentType]
    assert set(store.triples()) == set(SMALL[:2])


def test_progress_is_told_after_each_batch(store: GraphStore) -> None:
    seen: list[int] = []
    store.upsert(iter(SMALL), batch_size=2, on_progress=seen.append)
    assert seen == [2, 4, 5]
