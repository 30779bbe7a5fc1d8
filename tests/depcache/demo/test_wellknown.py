# SPDX-License-Identifier: Apache-2.0
"""The sample graph keeps what its card promises, and it alone answers every question."""

import json
import re
import unicodedata
from collections import Counter, defaultdict
from importlib.resources import files

import pytest

FOLDER = files("depcache").joinpath("demo", "wellknown")


def read(name):
    return FOLDER.joinpath(name).read_text(encoding="utf-8")


TSV_LINES = read("triples.tsv").removesuffix("\n").split("\n")
TRIPLES = [tuple(line.split("\t")) for line in TSV_LINES[1:]]
ENTITIES = {name for subject, _, obj in TRIPLES for name in (subject, obj)}
QUESTIONS = [json.loads(line) for line in read("questions.jsonl").splitlines()]
CARD = read("README.md")

each_question = pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q["id"])


def neighbours():
    """entity -> the entities one edge away, in either direction."""
    links = defaultdict(set)
    for subject, _, obj in TRIPLES:
        links[subject].add(obj)
        links[obj].add(subject)
    return links


def within(start, num_hops):
    """All entities at most `num_hops` edges from `start`, itself included."""
    links, reached = neighbours(), {start}
    for _ in range(num_hops):
        reached |= {other for entity in reached for other in links[entity]}
    return reached


def chain_of(question):
    """The entities along the evidence, topic first, and per edge (relation, forward).

    Raises AssertionError where an edge does not continue from the entity before it.
    """
    nodes, steps = [question["entities"][0]], []
    for subject, relation, obj in question["evidence"]:
        assert nodes[-1] in (subject, obj), f"{question['id']}: the chain breaks at {nodes[-1]!r}"
        forward = nodes[-1] == subject
        nodes.append(obj if forward else subject)
        steps.append((relation, forward))
    return nodes, steps


def walk(start, steps):
    """Every entity reached from `start` by the relations in `steps`, over the whole graph."""
    reached = {start}
    for relation, forward in steps:
        reached = {
            obj if forward else subject
            for subject, edge, obj in TRIPLES
            if edge == relation and (subject if forward else obj) in reached
        }
    return reached


def card_table(first_header):
    """{first cell: int(second cell)} of the card's table whose first header is `first_header`."""
    header = rf"^\| {re.escape(first_header)} \|.*\n\|[-| :]+\|\n"
    match = re.search(header + r"((?:\|.*\n)+)", CARD, re.MULTILINE)
    assert match, f"the card has no table that starts with {first_header!r}"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in match[1].splitlines()]
    return {row[0]: int(row[1]) for row in rows}


# triples


def test_every_line_is_three_clean_cells_under_the_header():
    assert TSV_LINES[0] == "subject\trelation\tobject"
    for triple in TRIPLES:
        assert len(triple) == 3, triple
        for cell in triple:
            assert cell, triple
            assert cell == " ".join(cell.split()), triple
            assert cell == unicodedata.normalize("NFC", cell), triple


def test_relations_are_lower_case_words():
    for _, relation, _ in TRIPLES:
        assert re.fullmatch(r"[a-z]+( [a-z]+)*", relation), relation


def test_no_triple_is_repeated_or_points_at_itself():
    assert [triple for triple, count in Counter(TRIPLES).items() if count > 1] == []
    assert [triple for triple in TRIPLES if triple[0] == triple[2]] == []


def test_no_entity_has_two_spellings_by_case_or_is_also_a_relation():
    assert len({name.casefold() for name in ENTITIES}) == len(ENTITIES)
    assert ENTITIES.isdisjoint(relation for _, relation, _ in TRIPLES)


def test_no_two_triples_state_the_same_pair_in_opposite_directions():
    known = set(TRIPLES)
    assert [(s, r, o) for s, r, o in TRIPLES if (o, r, s) in known] == []


def test_every_entity_can_be_reached_from_every_other():
    start = next(iter(ENTITIES))
    assert within(start, len(ENTITIES)) == ENTITIES


# the card


def test_the_card_counts_are_the_true_counts():
    num_neighbours = [len(linked) for linked in neighbours().values()]
    topics = {name for q in QUESTIONS for name in q["entities"]}
    assert card_table("what") == {
        "triples": len(TRIPLES),
        "entities": len(ENTITIES),
        "relations": len({relation for _, relation, _ in TRIPLES}),
        "entities with 6 to 20 neighbours": sum(6 <= n <= 20 for n in num_neighbours),
        "most neighbours of one entity": max(num_neighbours),
        "names with non-ASCII letters": sum(not name.isascii() for name in ENTITIES),
        "entities within 3 hops of a topic entity": len(
            set().union(*(within(name, 3) for name in topics))
        ),
        "questions": len(QUESTIONS),
        "topic entities": len(topics),
        "questions with several topic entities": sum(len(q["entities"]) > 1 for q in QUESTIONS),
    }


def test_the_card_lists_every_relation_with_its_count():
    assert card_table("relation") == Counter(relation for _, relation, _ in TRIPLES)


def test_the_card_lists_the_questions_by_hop():
    by_hop = Counter(str(q["hops"]) for q in QUESTIONS)
    assert card_table("hops") == by_hop == {"1": 12, "2": 16, "3": 12}


# questions


def test_question_ids_run_from_q01_to_q40_and_texts_differ():
    assert [q["id"] for q in QUESTIONS] == [f"q{n:02}" for n in range(1, 41)]
    assert len({q["question"] for q in QUESTIONS}) == len(QUESTIONS)


def test_every_topic_entity_is_asked_about_three_times_or_more():
    # The demo shows reuse across questions, so no topic may stand alone.
    counts = Counter(name for q in QUESTIONS for name in q["entities"])
    assert {name: count for name, count in counts.items() if count < 3} == {}


@each_question
def test_question_is_well_formed(question):
    assert list(question) == ["id", "question", "entities", "answers", "hops", "evidence"]
    assert question["question"].endswith("?")
    assert 1 <= len(question["entities"]) <= 4
    assert question["answers"]
    for field in ("entities", "answers"):
        assert len(set(question[field])) == len(question[field])
        assert set(question[field]) <= ENTITIES


@each_question
def test_question_names_its_topic_entities_and_no_answer(question):
    text = question["question"]
    assert [name for name in question["entities"] if name not in text] == []
    assert [name for name in question["answers"] if name in text] == []


@each_question
def test_evidence_is_in_the_graph(question):
    known = set(TRIPLES)
    assert [edge for edge in question["evidence"] if tuple(edge) not in known] == []


@each_question
def test_evidence_is_a_chain_of_that_many_hops_from_topic_to_first_answer(question):
    nodes, steps = chain_of(question)
    assert len(steps) == question["hops"]
    assert len(set(nodes)) == len(nodes), "the chain visits an entity twice"
    assert nodes[-1] == question["answers"][0]


@each_question
def test_answers_are_exactly_what_the_relation_walk_yields(question):
    _, steps = chain_of(question)
    assert walk(question["entities"][0], steps) == set(question["answers"])


@each_question
def test_every_topic_entity_reaches_an_answer_within_the_hops(question):
    for name in question["entities"]:
        assert within(name, question["hops"]) & set(question["answers"]), name
