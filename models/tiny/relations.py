# SPDX-License-Identifier: Apache-2.0
"""The relations of `relations.yaml`: what they join, and how questions speak of them."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from depcache.prompt.paths import INVERSE_RELATION
from models.tiny.stages import RECIPE

_FACT_SHARE = 0.6

_CLAUSE = re.compile(
    r"(?P<thing>the [a-z ]+?) (?P<rest>(that|who|whose|where|(in|at|on|into|through) which) .+)"
)
_ENDS_IN_VERB = re.compile(r"\{x\} [a-z]+\?$")
_PLURALS = {"was": "were", "is": "are", "does": "do"}
_BEHIND_SHARE = 0.5
"""The share of questions with a clause behind, where one can stand there: `In which city is the
museum located that houses X?`"""


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation; see the head of `relations.yaml`.

    joins  (kind of subject, kind of object), of which a fact has one
    """

    name: str
    joins: tuple[tuple[str, str], ...]
    most: int
    share: float
    weight: float
    object: tuple[str, ...]
    subject: tuple[str, ...]
    of_object: tuple[str, ...]
    of_subject: tuple[str, ...]


Lexicon = Mapping[str, Relation]
"""The relations of a world by name, as they stand in its facts."""


@cache
def load_relations() -> dict[str, Relation]:
    """All relations by name, in the order of the file."""
    data = yaml.safe_load((RECIPE / "relations.yaml").read_text(encoding="utf-8"))
    return {name: _read(name, relation) for name, relation in data.items()}


def _read(name: str, data: dict[str, Any]) -> Relation:
    subjects, objects = (
        [data[key]] if isinstance(data[key], str) else data[key] for key in ("from", "to")
    )
    return Relation(
        name=name,
        joins=tuple(zip(subjects, objects, strict=True)),
        most=data.get("most", 1),
        share=data.get("share", _FACT_SHARE),
        weight=data.get("weight", 1.0),
        **{key: tuple(data[key]) for key in ("object", "subject", "of_object", "of_subject")},
    )


def ask(
    topic: str, relations: Sequence[str], rng: random.Random, lexicon: Lexicon | None = None
) -> str:
    """A question for what a walk from `topic` along these relations of a path arrives at.

    topic      a name, or a phrase that stands for what is known
    relations  at least one, as they stand in a path: `inverse of ...` goes to the subject
    lexicon    by default those of `relations.yaml`
    """
    known = describe(topic, relations[:-1], rng, lexicon)
    relation, is_inverse = _find(relations[-1], lexicon)
    template = rng.choice(relation.subject if is_inverse else relation.object)
    clause = _CLAUSE.fullmatch(known)
    if clause and _ENDS_IN_VERB.search(template) and rng.random() < _BEHIND_SHARE:
        template = f"{template[:-1]} {clause['rest']}?"
        known = clause["thing"]
    text = _agree(template.replace("{x}", known), rng)
    return text[0].upper() + text[1:]


def describe(
    topic: str, relations: Sequence[str], rng: random.Random, lexicon: Lexicon | None = None
) -> str:
    """A noun phrase for what such a walk arrives at; the topic itself when it goes nowhere."""
    known = topic
    for name in relations:
        relation, is_inverse = _find(name, lexicon)
        templates = relation.of_subject if is_inverse else relation.of_object
        known = rng.choice(templates).replace("{x}", known)
    return known


def weight_of(name: str, lexicon: Lexicon | None = None) -> float:
    """How much rather than others a relation of a path is asked for."""
    relation, is_inverse = _find(name, lexicon)
    return 1.0 if is_inverse else relation.weight


def _agree(question: str, rng: random.Random) -> str:
    """Verbs of two things, or of founders, in the plural: `In which state lie both X and Y?`"""

    def plural(match: re.Match[str]) -> str:
        return f"{_PLURALS[match[1]]} {match[2]}"

    question = re.sub(r"\b(was|is|does) (both|the founders)\b", plural, question)
    if rng.random() < _BEHIND_SHARE:
        question = re.sub(r"\bdo (both .+) lie\?$", r"lie \1?", question)
    return question


def _find(name: str, lexicon: Lexicon | None) -> tuple[Relation, bool]:
    plain = name.removeprefix(INVERSE_RELATION)
    return (lexicon or load_relations())[plain], plain != name
