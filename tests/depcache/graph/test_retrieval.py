# SPDX-License-Identifier: Apache-2.0
"""From a question to paths: expansion against brute force, pruning, order, bounds and notes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ahocorasick", reason="needs the extra `graph`")
pytest.importorskip("rapidfuzz", reason="needs the extra `graph`")

from depcache.errors import ConfigError
from depcache.graph.expansion import Bounds, expand
from depcache.graph.networkx_store import NetworkXStore
from depcache.graph.pruning import (
    MiniLMPruner,
    NoPruner,
    Pruner,
    WordPruner,
    get_pruner,
    has_minilm,
    prune,
    stable_key,
)
from depcache.graph.retrieval import Retriever
from depcache.prompt.paths import INVERSE_RELATION, Path

SMALL = [
    ("Ann Lee", "born in", "Oslo"),
    ("Ann Lee", "wrote", "Blue"),
    ("Bob", "directed", "Blue"),
    ("Bob", "born in", "Rome"),
    ("Oslo", "is in", "Norway"),
]
names = st.sampled_from("abcdef")
graphs = st.lists(st.tuples(names, st.sampled_from("rs"), names), max_size=14)


def make_store(triples: list[tuple[str, str, str]]) -> NetworkXStore:
    store = NetworkXStore()
    store.upsert(triples)
    return store


def paths_ref(triples: set[tuple[str, str, str]], path: Path, num_hops: int) -> set[Path]:
    """All simple paths that go on from `path`, written another way: over the triples."""
    if num_hops == 0:
        return set()
    found: set[Path] = set()
    for head, relation, tail in triples:
        for here, label, there in (
            (head, relation, tail),
            (tail, INVERSE_RELATION + relation, head),
        ):
            if here == path[-1] and there not in path[::2]:
                longer = (*path, label, there)
                found |= {longer} | paths_ref(triples, longer, num_hops - 1)
    return found


@given(triples=graphs, hops=st.integers(1, 4))
def test_expansion_finds_every_simple_path(triples: list, hops: int) -> None:
    expansions = expand(make_store(triples), ["a", "b", "nobody"], hops)
    entities = {name for h, _, t in triples for name in (h, t)}
    assert set(expansions) == {"a", "b"} & entities
    for entity, found in expansions.items():
        assert len(found.paths) == len(set(found.paths))
        assert set(found.paths) == paths_ref(set(triples), (entity,), hops)
        assert not found.is_cut and not found.hubs


def test_every_bound_holds_and_is_told() -> None:
    triples = [("a", "r", f"m{i}") for i in range(50)]
    triples += [(f"m{i}", "s", f"n{i}.{j}") for i in range(50) for j in range(20)]
    store = make_store(triples)
    found = expand(store, ["a"], 2, Bounds(max_edges=(10, 5)))["a"]
    # One of the five edges of each may lead back.
    assert 10 + 10 * 4 <= len(found.paths) <= 10 + 10 * 5
    assert found.hubs["a"] == (10, 50) and len(found.hubs) == 11
    found = expand(store, ["a"], 2, Bounds(max_paths=70))["a"]
    assert len(found.paths) == 70 and found.is_cut
    found = expand(store, ["a"], 2, Bounds(max_frontier=3))["a"]
    assert len(found.paths) == 50 + 3 * 20 and found.is_cut
    notes = Retriever(store, pruner="none", bounds=Bounds((10, 5))).retrieve("a").notes
    assert any("'a' has 50 edges: a fixed sample of 10" in note for note in notes)
    assert any("8 more entities" in note for note in notes)


def test_small_entities_go_first_where_a_bound_cuts() -> None:
    triples = [("a", "r", "hub"), ("a", "r", "small"), ("small", "s", "fact")]
    triples += [("hub", "s", f"n{i}") for i in range(100)]
    found = expand(make_store(triples), ["a"], 2, Bounds(max_paths=3))["a"]
    assert ("a", "r", "small", "s", "fact") in found.paths


@pytest.mark.parametrize("hops", [0, -1, 9, 1.5])
def test_hops_out_of_range_are_refused(hops: int) -> None:
    with pytest.raises(ConfigError, match="num_hops"):
        expand(make_store(SMALL), ["Bob"], hops)


class RandomPruner(Pruner):
    name = "random"

    def score(self, question: str, paths: list[Path]) -> np.ndarray:  # pyright: ignore
        rng = random.Random(question)
        return np.array([rng.choice([0.1, 0.5, rng.random()]) for _ in paths])


@settings(max_examples=200)
@given(triples=graphs, num_paths=st.integers(1, 12), seed=st.text(max_size=3))
def test_kept_paths_are_few_none_begins_another_and_nothing_fitting_is_left_out(
    triples: list, num_paths: int, seed: str
) -> None:
    candidates = list(paths_ref(set(triples), ("a",), 3))
    kept = [path for path, _ in prune(seed, candidates, num_paths, RandomPruner())]
    assert len(kept) == len(set(kept)) <= num_paths
    for path in kept:
        assert path in candidates
        assert not any(other != path and other[: len(path)] == path for other in kept)
    leaves = [p for p in candidates if not any(q != p and q[: len(p)] == p for q in candidates)]
    assert len(kept) == min(num_paths, len(leaves)) or len(kept) == num_paths
    shuffled = random.Random(0).sample(candidates, len(candidates))
    assert [p for p, _ in prune(seed, shuffled, num_paths, NoPruner())] == [
        p for p, _ in prune(seed, candidates, num_paths, NoPruner())
    ]


def test_without_a_pruner_the_stable_order_decides() -> None:
    paths = [("a", "r", "z"), ("a", "r", "b"), ("a", "q", "z"), ("a", "q", "z", "r", "c")]
    kept = [path for path, _ in prune("?", paths, 10, NoPruner())]
    assert kept == [("a", "r", "b"), ("a", "r", "z"), ("a", "q", "z", "r", "c")]
    assert kept == sorted(kept, key=stable_key)


def test_words_of_the_question_decide_which_paths_stay() -> None:
    triples = [("Ann", f"relation {i}", f"thing {i}") for i in range(40)]
    triples += [("Ann", "birthplace", "Rome"), ("thing 7", "was born", "x")]
    found = Retriever(make_store(triples), pruner="words").retrieve(
        "Where was Ann born?", num_paths=2
    )
    assert ("Ann", "relation 7", "thing 7", "was born", "x") in found.paths
    assert WordPruner().score("?", []).shape == (0,)


@pytest.mark.skipif(not has_minilm(), reason="needs the extra `embed`")
def test_similarity_of_meaning_decides_which_paths_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    pruner = MiniLMPruner()
    paths: list[Path] = [("Ann Lee", f"number_{i}", f"thing {i}") for i in range(300)]
    paths += [("Ann Lee", "spouse", "Bob"), ("Ann Lee", "employer", "Acme")]
    [(best, _)] = prune("Who is Ann Lee married to?", paths, 1, pruner)
    assert best == ("Ann Lee", "spouse", "Bob")
    first = pruner.score("Who is Ann Lee married to?", paths)
    # The same texts again come from the cache, and the scores are the same.
    monkeypatch.setattr(pruner, "_model", None)
    monkeypatch.setattr("depcache.graph.pruning._load_minilm", pytest.fail)
    np.testing.assert_array_equal(pruner.score("Who is Ann Lee married to?", paths), first)
    assert pruner.score("?", []).shape == (0,)


@pytest.mark.parametrize(("num_paths", "by_relevance"), [(4, False), (3, False), (4, True)])
def test_nothing_is_scored_where_all_paths_fit(num_paths: int, by_relevance: bool) -> None:
    class Counting(WordPruner):
        num_scored = 0

        def score(self, question: str, paths: Sequence[Path]) -> np.ndarray:
            self.num_scored += len(paths)
            return super().score(question, paths)

    # Five paths, of which one begins another: four are to be kept.
    triples = [("a", "r", "b"), ("b", "s", "c"), *(("a", f"r{i}", f"d{i}") for i in range(3))]
    pruner = Counting()
    retriever = Retriever(make_store(triples), pruner=pruner, max_paths=num_paths)
    found = retriever.retrieve("d0?", entities=["a"], by_relevance=by_relevance)
    assert len(found.paths) == num_paths
    assert bool(pruner.num_scored) == (num_paths < 4 or by_relevance)
    if num_paths == 4:
        scored = Retriever(make_store(triples), pruner="words", max_paths=4)
        ranked = scored.retrieve("d0?", entities=["a"], by_relevance=True)
        assert set(found.paths) == set(ranked.paths)


def test_pruners_by_name() -> None:
    assert get_pruner("none").name == get_pruner(None).name == "none"
    assert get_pruner("auto").name == ("minilm" if has_minilm() else "none")
    with pytest.raises(ConfigError, match="words"):
        get_pruner("best")


def test_a_question_gets_the_paths_of_the_entities_it_names() -> None:
    found = Retriever(make_store(SMALL), pruner="none").retrieve("Did Bob meet ann lee?")
    assert found.entities == ("Bob", "Ann Lee")
    assert found.paths == (
        ("Bob", "born in", "Rome"),
        ("Bob", "directed", "Blue", "inverse of wrote", "Ann Lee"),
        ("Ann Lee", "born in", "Oslo", "is in", "Norway"),
        ("Ann Lee", "wrote", "Blue", "inverse of directed", "Bob"),
    )
    assert list(found) == list(found.paths) and len(found) == 4
    assert set(found.timings_ms) == {"link", "expand", "prune", "total"}
    assert found.notes == ()


def test_the_arguments_bound_entities_hops_and_paths() -> None:
    retriever = Retriever(make_store(SMALL), pruner="none")
    found = retriever.retrieve("Did Bob meet Ann Lee?", num_entities=1, num_hops=1, num_paths=1)
    assert found.entities == ("Ann Lee",)
    assert found.paths == (("Ann Lee", "born in", "Oslo"),)


@pytest.mark.parametrize("name", ["num_entities", "num_hops", "num_paths"])
def test_numbers_below_one_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Retriever(make_store(SMALL), pruner="none").retrieve("Bob?", **{name: 0})


def test_order_by_relevance_changes_the_order_only() -> None:
    retriever = Retriever(make_store(SMALL), pruner="words", max_paths=1)
    plain = retriever.retrieve("Where was Ann Lee, unlike Bob, born?")
    ranked = retriever.retrieve("Where was Ann Lee, unlike Bob, born?", by_relevance=True)
    assert sorted(plain) == sorted(ranked)


def test_an_unknown_entity_is_told_with_the_nearest_names() -> None:
    retriever = Retriever(make_store(SMALL), pruner="none")
    found = retriever.retrieve("Who is Annabel Leeson?")
    assert found.paths == ()
    assert "names no entity" in found.notes[0] and "'Ann Lee'" in found.notes[0]
    found = retriever.retrieve("?", entities=["Norwai"])
    assert found.notes == ("the graph has no entity 'Norwai': the nearest names are 'Norway'",)
    assert "was read as 'Norway'" in retriever.retrieve("the king of Norwayy").notes[0]


def test_an_empty_graph_answers_with_a_note() -> None:
    found = Retriever(make_store([])).retrieve("Who is Ann?")
    assert found.paths == () and found.notes == ("the question names no entity of the graph",)


def test_names_added_later_are_linked() -> None:
    store = make_store(SMALL)
    retriever = Retriever(store, pruner="none")
    assert retriever.link("Where is Zoe?") == []
    store.upsert([("Zoe", "lives in", "Oslo")])
    assert retriever.link("Where is Zoe?") == ["Zoe"]
    store.add_aliases({"Zoe": ["Z."]})
    assert retriever.link("Where is Z.?") == ["Zoe"]


def test_a_networkx_graph_will_do_as_in_the_demo() -> None:
    graph = nx.MultiDiGraph()
    graph.add_edge("a", "b", relation="r")
    graph.add_edge("a", "b", relation="s")
    retriever = Retriever(graph, pruner="none", max_hops=3, max_paths=30)
    assert list(retriever.retrieve("a")) == [("a", "r", "b"), ("a", "s", "b")]


def last_edge(path: Path) -> Path | None:
    if len(path) < 3:
        return None
    before, label, here = path[-3:]
    plain = label.removeprefix(INVERSE_RELATION)
    return (before, label, here) if plain == label else (here, plain, before)


def walks_ref(triples: set[tuple[str, str, str]], path: Path, num_hops: int) -> set[Path]:
    """As `paths_ref` with repeats, but for the last edge once more, written over the triples."""
    if num_hops == 0:
        return set()
    found: set[Path] = set()
    for head, relation, tail in triples:
        for here, label, there in {
            (head, relation, tail),
            (tail, INVERSE_RELATION + relation, head),
        }:
            if head == tail and label != relation:
                continue  # a self loop has one direction
            is_back = (head, relation, tail) == last_edge(path)
            if here == path[-1] and not is_back:
                longer = (*path, label, there)
                found |= {longer} | walks_ref(triples, longer, num_hops - 1)
    return found


@given(triples=graphs, hops=st.integers(1, 3))
def test_with_repeats_every_walk_is_found_that_takes_no_edge_twice_in_a_row(
    triples: list, hops: int
) -> None:
    found = expand(make_store(triples), ["a"], hops, allow_repeats=True)
    entities = {name for h, _, t in triples for name in (h, t)}
    if "a" in entities:
        assert len(found["a"].paths) == len(set(found["a"].paths))
        assert set(found["a"].paths) == walks_ref(set(triples), ("a",), hops)


def test_self_loops_and_second_visits_are_an_option() -> None:
    store = make_store(
        [("Ann", "married to", "Bob"), ("Bob", "married to", "Ann"), ("Ann", "knows", "Ann")]
    )
    retriever = Retriever(store, pruner="none", max_hops=2)
    assert not [path for path in retriever.retrieve("Ann?") if len(set(path[::2])) < len(path[::2])]
    found = retriever.retrieve("Ann?", allow_repeats=True).paths
    assert ("Ann", "married to", "Bob", "married to", "Ann") in found
    assert any(path[:3] == ("Ann", "knows", "Ann") for path in found)


def make_films() -> list[tuple[str, str, str]]:
    """A film with 40 actors, whose director made one other film; every film has a genre."""
    triples = [("Alien", "directed_by", "Ridley"), ("Gladiator", "directed_by", "Ridley")]
    triples += [("Gladiator", "has_genre", "Epic"), ("Alien", "in_language", "English")]
    for number in range(40):
        triples.append(("Alien", "starred_actors", f"actor {number}"))
        for other in range(10):
            film = f"film {number}.{other}"
            triples.append((film, "starred_actors", f"actor {number}"))
            triples.append((film, "has_genre", f"genre {other}"))
            triples.append((film, "written_by", f"writer {number}"))
    return triples


GOLD = ("Alien", "directed_by", "Ridley", "inverse of directed_by", "Gladiator", "has_genre",
        "Epic")  # fmt: skip


@pytest.mark.parametrize(
    "question",
    [
        "What genres are the films in that the director of Alien directed?",
        "what types are the movies directed by the Alien director",
    ],
)
def test_three_hops_that_the_question_says_are_among_thirty(question: str) -> None:
    store = make_store(make_films())
    assert GOLD in Retriever(store, pruner="words", max_hops=3).retrieve(question).paths
    # Not by looking at everything: the question decides what is looked at.
    asked: list[int] = []
    neighbours = store.neighbours

    def count(names, max_edges=None):
        asked.append(len(list(names)))
        return neighbours(names, max_edges)

    store.neighbours = count  # pyright: ignore
    bounds = Bounds(max_guided=60)
    found = Retriever(store, pruner="words", max_hops=3, bounds=bounds).retrieve(question)
    assert GOLD in found.paths and max(asked) <= 60


def test_what_is_chosen_does_not_depend_on_the_order_of_loading() -> None:
    triples = make_films()
    question = "who wrote the films whose actors also appear in Alien"
    first = Retriever(make_store(triples), pruner="words", max_hops=3).retrieve(question).paths
    assert len(first) == 30
    assert sum("written_by" in path for path in first) > 10
    random.Random(0).shuffle(triples)
    again = Retriever(make_store(triples), pruner="words", max_hops=3).retrieve(question).paths
    assert again == first
