# SPDX-License-Identifier: Apache-2.0
"""The unseen graphs are whole, their answers follow from them, and nothing of them is taught."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from depcache.demo.sample import load_entities, load_triples
from depcache.prompt.paths import Path as FactPath
from eval.quality.prompts import SETS, UNSEEN_SETS, make_sets
from eval.quality.teach import unseen_of
from eval.sets import DataSet, Question
from eval.workloads.graphs import DEMO, Graphs
from eval.workloads.unseen import load_unseen, unseen_entities, unseen_relations
from models.tiny.invented import words_of_names
from models.tiny.relations import load_relations

CARD = Path(__file__).parents[3] / "eval" / "unseen" / "README.md"
HOPS = {name: int(name[-4]) for name in UNSEEN_SETS}


def walk_of(question: Question) -> FactPath:
    """The evidence as one path from the topic."""
    path = [question.entities[0]]
    for subject, relation, obj in question.evidence:
        path += [relation, obj] if subject == path[-1] else [f"inverse of {relation}", subject]
    return tuple(path)


def ends_of(data: DataSet, walk: FactPath) -> set[str]:
    """Every end that the same relations lead to over the whole graph."""
    reached = {walk[0]}
    for step in walk[1::2]:
        relation = step.removeprefix("inverse of ")
        reached = {
            obj if step == relation else subject
            for subject, edge, obj in data.triples
            if edge == relation and (subject if step == relation else obj) in reached
        }
    return reached


def test_there_are_two_graphs_with_questions_of_one_to_three_hops() -> None:
    assert list(load_unseen()) == [
        f"unseen_{graph}_{hops}hop" for graph in ("depot", "hospital") for hops in (1, 2, 3)
    ]
    card = CARD.read_text(encoding="utf-8")
    for graph, column in (("hospital", 0), ("depot", 1)):
        sets = [data for name, data in load_unseen().items() if graph in name]
        [triples] = {data.triples for data in sets}
        assert len(set(triples)) == len(triples) >= 80
        counts = {
            "triples": str(len(triples)),
            "entities": str(len(sets[0].entities())),
            "relations": str(len({relation for _, relation, _ in triples})),
            "questions of 1, 2 and 3 hops": ", ".join(str(len(data.questions)) for data in sets),
        }
        for what, count in counts.items():
            [line] = re.findall(rf"^\| {what} \|(.+)\|$", card, re.M)
            assert line.split("|")[column].strip() == count
        assert sum(len(data.questions) for data in sets[:2]) >= 60


@pytest.mark.parametrize("name", UNSEEN_SETS)
def test_answers_are_what_the_evidence_leads_to(name: str) -> None:
    data = load_unseen()[name]
    assert len({question.text for question in data.questions}) == len(data.questions)
    for question in data.questions:
        assert set(question.evidence) <= set(data.triples)
        walk = walk_of(question)
        assert len(walk) == 2 * HOPS[name] + 1
        assert walk[-1] == question.answers[0]
        assert set(question.answers) == ends_of(data, walk)
        assert question.entities[0] in question.text
        assert not any(answer in question.text for answer in question.answers)


def test_retrieval_finds_the_way_to_every_answer_without_public_sets() -> None:
    numbers = dict.fromkeys((DEMO, *UNSEEN_SETS, "metaqa_2hop"), 40)
    sets = make_sets(None, numbers, pruner="words", max_paths=20)
    assert list(sets) == [DEMO, *UNSEEN_SETS]
    for name in UNSEEN_SETS:
        by_text = {question.text: question for question in load_unseen()[name].questions}
        for asked in sets[name]:
            walk = walk_of(by_text[asked.text])
            assert any(path[: len(walk)] == walk for path in asked.paths), asked.text


def test_the_five_sets_are_as_they_were() -> None:
    assert SETS == ("demo", "metaqa_1hop", "metaqa_2hop", "metaqa_3hop", "2wiki")
    store, data = Graphs(None).open(DEMO)
    assert data is None and set(store.triples()) == set(load_triples())


def test_no_word_of_their_relations_is_one_that_worlds_are_made_of() -> None:
    joining = {"after", "at", "by", "for", "from", "in", "into", "off", "on", "onto", "to", "with"}
    words = {word for name in unseen_relations() for word in name.split()} - joining
    assert len(words) > 30  # kept, calibrated, hauled, ...
    assert words.isdisjoint(words_of_names())
    assert unseen_relations().isdisjoint(load_relations())


def test_nothing_of_them_is_in_the_demo_and_teaching_leaves_them_out() -> None:
    assert unseen_entities().isdisjoint(load_entities())
    assert unseen_relations().isdisjoint(relation for _, relation, _ in load_triples())
    assert unseen_entities() | unseen_relations() | load_entities() == unseen_of([])
