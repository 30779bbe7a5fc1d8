# SPDX-License-Identifier: Apache-2.0
"""Made-up worlds: what is asked can be read from the paths, and nothing of an evaluation leaks."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import islice, pairwise
from statistics import median

import pytest

from depcache.demo.sample import load_triples
from depcache.prompt.paths import INVERSE_RELATION
from models.tiny.names import KINDS, Names
from models.tiny.relations import ask, load_relations
from models.tiny.worlds import UNKNOWN, answer_of, make_examples

NUM = 300


@pytest.fixture(scope="module")
def examples():
    return list(islice(make_examples(3), NUM))


@pytest.fixture(scope="module")
def told(examples):
    return [example for example in examples if example.answer != UNKNOWN]


def evidence_of(example):
    *lines, last = example.answer.split("\n")
    return [tuple(line.split(" -> ")) for line in lines], last.removeprefix("Answer: ")


def ends_alike(example, walk):
    """Returns the beginnings, as long as `walk`, of paths from there along the same relations."""
    paths = [path[: len(walk)] for path in example.paths if path[0] == walk[0]]
    return [path for path in paths if path[1::2] == walk[1::2]]


def test_every_answer_is_the_beginning_of_a_path_and_its_end(told):
    for example in told:
        walks, answer = evidence_of(example)
        assert walks[-1][-1] == answer
        for walk in walks:
            assert len(walk) in (3, 5, 7)
            assert walk[0] in example.question
            assert walk in ends_alike(example, walk)
        if len(walks) == 1:
            assert ends_alike(example, walks[0])[0] == walks[0]


def test_alternatives_are_all_that_is_reached_the_same_way(told):
    several = 0
    for example in told:
        walks, _ = evidence_of(example)
        others = set(ends_alike(example, walks[0])[1:]) - {walks[0]} if len(walks) == 1 else set()
        assert sorted(example.alternatives) == sorted(map(answer_of, others))
        several += bool(others)
    assert several > len(told) / 50


def test_two_things_have_only_the_answer_in_common(told):
    several = 0
    for example in told:
        walks, answer = evidence_of(example)
        if len(walks) == 2:
            ends = [{end[-1] for end in ends_alike(example, walk)} for walk in walks]
            assert ends[0] & ends[1] == {answer}
            several += len(ends[0]) > 1
    assert several


def test_most_questions_have_one_answer(told):
    several = 0
    for example in told:
        walk = evidence_of(example)[0][0]
        same = {p[: len(walk)] for p in example.paths if p[0] == walk[0] and len(p) >= len(walk)}
        several += sum(path[1::2] == walk[1::2] for path in same) > 1
    assert 0 < several < 0.3 * len(told)


def test_some_questions_are_about_two_things_that_lead_to_one(told):
    pairs = [walks for example in told if len(walks := evidence_of(example)[0]) == 2]
    assert len(pairs) > NUM / 60
    for one, other in pairs:
        assert one[0] != other[0] and one[-2:] == other[-2:]
    assert sum(len({path[0] for path in example.paths}) > 1 for example in told) > NUM / 4


def test_where_the_facts_do_not_say_it_the_topic_is_not_among_them(examples):
    unknown = [example for example in examples if example.answer == UNKNOWN]
    assert 0 < len(unknown) < NUM / 5
    for example in unknown:
        assert not any(path[0] in example.question for path in example.paths)


def test_one_to_three_hops_and_both_directions_occur(told):
    walks = [evidence_of(e)[0][0][1::2] for e in told]
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
    both = answer_of(("X", "born in", "Z"), ("Y", "born in", "Z"))
    assert both == "X -> born in -> Z\nY -> born in -> Z\nAnswer: Z"


def test_a_clause_stands_before_or_behind_the_verb():
    rng = random.Random(0)
    asked = {ask("X", ["housed in", "located in"], rng) for _ in range(400)}
    assert "In which city is the museum that houses X located?" in asked
    assert "In which city is the museum located that houses X?" in asked
    # What has no clause, or no verb behind it, stays as it is.
    assert {ask("X", ["born in"], rng) for _ in range(400)} == {
        template.replace("{x}", "X") for template in load_relations()["born in"].object
    }
    long = {ask("X", ["student of", "studied at", "located in"], rng) for _ in range(800)}
    assert "In which city is the university located at which the teacher of X studied?" in long


def test_rare_relations_are_asked_for_too():
    ends = Counter(
        evidence_of(example)[0][-1][-2]
        for example in islice(make_examples(8, num_questions=16), 3000)
        if example.answer != UNKNOWN
    )
    assert len(ends) > 55 and max(ends.values()) < 12 * median(ends.values())


def test_two_things_have_a_verb_in_the_plural():
    asked = {example.question for example in islice(make_examples(9, num_questions=16), 30_000)}
    assert not any(re.search(r"\b(was|is|does) (both|the founders)\b", text) for text in asked)
    assert any(text.startswith("In which state lie both ") for text in asked)
    assert any("were the founders of " in text for text in asked)
    assert any(re.search(r"\bthe [A-ZÄÖÜ]\w+ flow into\?$", text) for text in asked)


def test_initials_may_come_twice():
    names = Names(random.Random(1))
    people = [names.draw("person") for _ in range(500)]
    assert any(re.match(r"\w\. (\w)\. \1\. ", name) for name in people)


def test_given_names_are_used_for_any_kind_and_forbidden_ones_never():
    natural = [f"Given {letter}" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    examples = make_examples(1, natural=natural, forbidden=frozenset(natural[:13]))
    nodes = {n for e in islice(examples, 300) for path in e.paths for n in path[::2]}
    assert not nodes & set(natural[:13])
    assert len(nodes & set(natural[13:])) > 10
    assert any(not node.startswith("Given") for node in nodes)
