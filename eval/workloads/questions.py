# SPDX-License-Identifier: Apache-2.0
"""Which questions of a set are asked, and what may be learned from then on.

The same for everyone: questions are drawn by a hash of their topic, not by chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from depcache.demo.sample import load_questions
from eval.sets import DataSet, Question, SetError

NUM_ASKED = 500
_HELD_OUT_KINDS = ("dev", "test")


def texts_and_answers(
    data: DataSet | None, number: int | None
) -> list[tuple[str, tuple[str, ...]]]:
    """Returns what `asked_of` says of a set, or the demo's questions where there is no set.

    number  how many at most; None for all
    """
    if data is None:
        return [(each.text, each.answers) for each in load_questions()[:number]]
    return [(each.text, each.answers) for each in asked_of(data, number)]


def asked_of(data: DataSet, number: int | None = NUM_ASKED) -> list[Question]:
    """The questions that are asked, in a fixed order: of those held out by the set, or of all."""
    held_out = [q for q in data.questions if q.split in _HELD_OUT_KINDS]
    return sorted(held_out or data.questions, key=_order)[:number]


def topics_of(questions: Iterable[Question]) -> frozenset[str]:
    """What the questions name; nothing of it may be seen in training."""
    return frozenset(entity for question in questions for entity in question.entities)


def taught_of(data: DataSet, unseen: frozenset[str]) -> list[Question]:
    """The other questions of a set, of which none names or is answered by something unseen."""
    return [
        question
        for question in data.questions
        if question.split not in _HELD_OUT_KINDS
        and unseen.isdisjoint((*question.entities, *question.answers))
    ]


def without(data: DataSet, unseen: frozenset[str]) -> list[tuple[str, str, str]]:
    """The triples that hold nothing unseen."""
    return [t for t in data.triples if t[0] not in unseen and t[2] not in unseen]


def _order(question: Question) -> tuple[bytes, str]:
    topic = "\0".join(question.entities) or question.text
    return blake2b(topic.encode(), digest_size=8).digest(), question.id


def sets_of(sets: Sequence[DataSet], prefix: str) -> list[DataSet]:
    """The sets of one graph: `metaqa_1hop`, ...; at least one.

    Raises SetError if there are none.
    """
    found = [data for data in sets if data.name.startswith(prefix)]
    if not found:
        names = ", ".join(data.name for data in sets)
        raise SetError(f"no set of {prefix!r} in the folder: it has {names}")
    return found
