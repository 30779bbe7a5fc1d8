# SPDX-License-Identifier: Apache-2.0
"""Relations of one world only: new names, of which the words of a question name one."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from itertools import islice

import pytest

from depcache.training.examples import Example
from models.tiny.invented import SPELLINGS, draw_relations, verb_forms, words_of_names
from models.tiny.names import KINDS, NOUNS, Names
from models.tiny.relations import load_relations
from models.tiny.worlds import UNKNOWN, make_examples, make_world

NUM_WORLDS = 200
# The digest of `make_examples(3)` before there was such a world: what ships was trained on these.
BEFORE = "806d5c6b8995"


@pytest.fixture(scope="module")
def lexicons():
    return [draw_relations(random.Random(seed)) for seed in range(NUM_WORLDS)]


@pytest.fixture(scope="module")
def own(lexicons):
    """The relations of every world that are its own."""
    known = load_relations()
    return [{n: r for n, r in each.items() if n not in known} for each in lexicons]


@pytest.fixture(scope="module")
def examples():
    made = make_examples(3, made_up_relations=1.0, num_questions=16)
    return [example for example in islice(made, 1500) if example.answer != UNKNOWN]


def evidence_of(example: Example) -> list[tuple[str, ...]]:
    return [tuple(line.split(" -> ")) for line in example.answer.split("\n")[:-1]]


def plain(relation: str) -> str:
    return relation.removeprefix("inverse of ")


def digest(examples: list[Example]) -> str:
    text = repr([(e.question, e.paths, e.answer, e.alternatives) for e in examples])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def test_without_them_worlds_are_what_they_were() -> None:
    assert digest(list(islice(make_examples(3), 300))) == BEFORE
    assert digest(list(islice(make_examples(3, made_up_relations=0.0), 300))) == BEFORE
    assert digest(list(islice(make_examples(3, made_up_relations=0.5), 300))) != BEFORE


def test_a_world_has_relations_that_no_other_has(own) -> None:
    counts = Counter(name for relations in own for name in relations)
    assert all(relations for relations in own)
    assert len(counts) > 5 * NUM_WORLDS
    assert sum(n == 1 for n in counts.values()) > 0.75 * len(counts)


def test_names_are_written_as_graphs_write_them_each_in_one_way(own) -> None:
    ways = Counter()
    for relations in own:
        names = "|".join(relations)
        if re.search(r"[a-z]_[a-z]", names):
            ways["snake"] += 1
        elif re.search(r"[A-Z]_[A-Z]", names):
            ways["upper"] += 1
        elif re.search(r"[a-z][A-Z]", names):
            ways["camel"] += 1
        elif " " in names:
            ways["phrase"] += 1
        assert not (re.search(r"[a-z][A-Z]", names) and re.search(r"[ _]", names))
    assert set(ways) == set(SPELLINGS) and ways["phrase"] == max(ways.values())
    assert SPELLINGS["camel"](["is", "towed", "by"]) == "isTowedBy"
    assert SPELLINGS["upper"](["towed", "by"]) == "TOWED_BY"


def test_several_relations_leave_a_thing(own) -> None:
    for relations in own:
        leaving = Counter(subject for r in relations.values() for subject, _ in r.joins)
        assert max(leaving.values()) >= 2


def test_words_of_english_and_others_occur(own) -> None:
    words = {
        word.lower()
        for relations in own
        for name in relations
        for word in re.split(r"[ _]|(?=[A-Z][a-z])", name)
        if word
    }
    known = words_of_names()
    assert len(words & known) > 100 and len(words - known) > 100


def test_every_relation_can_be_asked_about_in_both_directions(lexicons) -> None:
    for lexicon in lexicons:
        for relation in lexicon.values():
            for key in ("object", "subject", "of_object", "of_subject"):
                texts = getattr(relation, key)
                assert texts
                for text in texts:
                    assert text.count("{x}") == 1 and "{" not in text.replace("{x}", "")
                    assert text.endswith("?") == (not key.startswith("of_"))
            assert {kind for join in relation.joins for kind in join} <= set(KINDS)


def test_a_question_says_the_words_of_the_relation(own) -> None:
    nouns = {noun for kind in NOUNS.values() for noun in kind}
    asking = {"what", "who", "whom", "which", "where", "does", "did", "was", "has", "have"}
    others = asking | {"its", "that", "the", "whose", "place"}
    for relations in own:
        for name, relation in relations.items():
            letters = re.sub(r"[^a-z]", "", name.lower())
            for key in ("object", "subject", "of_object", "of_subject"):
                for text in getattr(relation, key):
                    words = set(re.findall(r"[a-z]{3,}", text.lower())) - others - nouns
                    # One begins as a word in the name does: repairs, repairer, repaired.
                    assert any(word[: max(3, len(word) - 4)] in letters for word in words), text


def test_verbs_have_their_forms() -> None:
    assert list(verb_forms("repair").values()) == ["repair", "repairs", "repaired", "repairer"]
    assert list(verb_forms("copy").values()) == ["copy", "copies", "copied", "copier"]
    assert list(verb_forms("ship").values()) == ["ship", "ships", "shipped", "shipper"]
    assert list(verb_forms("wash").values()) == ["wash", "washes", "washed", "washer"]
    assert list(verb_forms("translate").values())[1:] == ["translates", "translated", "translator"]
    assert list(verb_forms("obey").values())[1:3] == ["obeys", "obeyed"]


def test_a_forbidden_name_is_not_drawn_however_it_is_written() -> None:
    seed, name = next(
        (seed, name)
        for seed in range(50)
        for name in draw_relations(random.Random(seed))
        if re.fullmatch(r"[a-z]+[A-Z][a-z]+", name)
    )
    phrase = re.sub(r"([A-Z])", r" \1", name).lower()
    assert name not in draw_relations(random.Random(seed), frozenset([phrase]))
    assert name not in draw_relations(random.Random(seed), frozenset([name]))


def test_questions_go_one_to_three_hops_over_them_in_both_directions(examples) -> None:
    walks = [evidence_of(example)[0] for example in examples]
    assert {len(walk) // 2 for walk in walks} == {1, 2, 3}
    known = load_relations()
    made_up = [[plain(name) not in known for name in walk[1::2]] for walk in walks]
    assert sum(map(all, made_up)) > 0.2 * len(walks)
    assert sum(any(each) and not all(each) for each in made_up) > 0.1 * len(walks)  # mixed
    names = [n for walk in walks for n in walk[1::2] if plain(n) not in known]
    assert 0.2 < sum(plain(name) != name for name in names) / len(names) < 0.8


def test_the_answer_is_in_the_facts_and_stopping_elsewhere_is_wrong(examples) -> None:
    choices = 0
    for example in examples:
        for walk in evidence_of(example):
            assert any(path[: len(walk)] == walk for path in example.paths)
            assert walk[0] in example.question
        [first, *_] = evidence_of(example)
        relations = {path[1] for path in example.paths if path[0] == first[0]}
        choices += len(relations) > 1
    assert choices > 0.6 * len(examples)


def test_a_world_has_the_facts_of_its_lexicon() -> None:
    rng = random.Random(2)
    lexicon = draw_relations(rng)
    graph = make_world(rng, Names(rng), lexicon)
    found = {relation for _, _, relation in graph.edges(data="relation")}
    assert found <= set(lexicon) and not found <= set(load_relations())
