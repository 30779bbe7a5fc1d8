# SPDX-License-Identifier: Apache-2.0
"""Made-up worlds: what is asked can be read from the paths, and nothing of an evaluation leaks."""

from __future__ import annotations

import random
from itertools import islice, pairwise

import pytest

from depcache.demo.sample import load_triples
from depcache.prompt.paths import INVERSE_RELATION
from depcache.tiny.names import KINDS, Names
from depcache.tiny.relations import ask, load_relations
from depcache.tiny.worlds import answer_of, make_examples

NUM = 300


@pytest.fixture(scope="module")
def examples():
    return list(islice(make_examples(3), NUM))


def test_every_answer_is_the_beginning_of_a_path_and_its_end(examples):
    for example in examples:
        evidence, answer = example.answer.split("\nAnswer: ")
        walk = tuple(evidence.split(" -> "))
        assert any(path[: len(walk)] == walk for path in example.paths)
        assert walk[-1] == answer and len(walk) in (3, 5, 7)
        # Of walks along the same relations it is the first.
        same = [p for p in example.paths if p[: len(walk)][1::2] == walk[1::2]]
        assert same[0][: len(walk)] == walk
        assert walk[0] in example.question
        assert not any(name in example.question for name in walk[2::2] if name not in walk[0])


def test_one_to_three_hops_and_both_directions_occur(examples):
    walks = [e.answer.split("\n")[0].split(" -> ")[1::2] for e in examples]
    assert {len(walk) for walk in walks} == {1, 2, 3}
    inverse = sum(name.startswith(INVERSE_RELATION) for walk in walks for name in walk)
    assert 0.2 < inverse / sum(map(len, walks)) < 0.8
    assert len({name.removeprefix(INVERSE_RELATION) for walk in walks for name in walk}) > 25


def test_questions_over_the_same_paths_come_one_after_another(examples):
    changes = sum(a.paths != b.paths for a, b in pairwise(examples))
    assert changes < NUM / 3
    assert len({e.question for e in examples}) > 0.95 * NUM


def test_a_seed_makes_the_same_examples_and_another_makes_others(examples):
    assert list(islice(make_examples(3), 40)) == examples[:40]
    assert list(islice(make_examples(4), 40)) != examples[:40]


def test_names_of_an_evaluation_do_not_occur():
    forbidden = frozenset(Names(random.Random(0)).draw(kind) for kind in KINDS for _ in range(20))
    drawn = set()
    for seed in range(3):
        names = Names(random.Random(seed), forbidden)
        drawn |= {names.draw(kind) for kind in KINDS for _ in range(50)}
    assert len(drawn) > 1000
    assert not drawn & forbidden
    entities = {name for s, _, o in load_triples() for name in (s, o)}
    for example in islice(make_examples(5, forbidden=frozenset(entities)), 200):
        assert not entities & {name for path in example.paths for name in path[::2]}


def test_the_relations_of_the_sample_graph_are_spoken_about():
    relations = load_relations()
    assert {relation for _, relation, _ in load_triples()} == set(relations)
    for relation in relations.values():
        assert {kind for join in relation.joins for kind in join} <= set(KINDS)
        for name in ("object", "subject", "of_object", "of_subject"):
            templates = getattr(relation, name)
            assert templates and all(text.count("{x}") == 1 for text in templates)
            assert all(text.endswith("?") == (not name.startswith("of_")) for text in templates)


def test_a_question_is_made_from_the_inside_out():
    rng = random.Random(0)
    names = {ask("X", ["born in", f"{INVERSE_RELATION}flows through"], rng) for _ in range(200)}
    assert "Which river runs through the birthplace of X?" in names
    assert answer_of(("X", "born in", "Y")) == "X -> born in -> Y\nAnswer: Y"
