# SPDX-License-Identifier: Apache-2.0
"""Which tables a prompt holds, by how a program chooses them.

    whole:bird     all tables of the database that is asked about
    linked:bird    a schema linker: the right tables, and none to three others of the database
    lake:sql:12    retrieval over all databases at once: the right tables, and the best others up
                   to twelve

`:closed` at the end adds the tables that these refer to. Tables come in no order that a prefix
cache could use: shuffled for each question, as retrieval gives them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from eval.sets import SetError
from eval.tables.sets import PARTS, SqlQuestion, SqlSet

NUM_EXTRA = (0, 1, 1, 2, 3)
"""How many tables a linker adds to the right ones; one of these is drawn."""
LAKE = "lake"


@dataclass(frozen=True, slots=True)
class Form:
    """How the tables of a prompt are chosen; `size` is of a lake alone."""

    kind: str
    set_name: str
    size: int = 0
    is_closed: bool = False


def read_form(name: str) -> Form:
    """The form of that name. Raises SetError, with what there is, for any other name."""
    kind, *rest = name.split(":")
    is_closed = bool(rest) and rest[-1] == "closed"
    if is_closed:
        rest.pop()
    size = rest.pop() if kind == LAKE and len(rest) == 2 else "0"
    is_size = size.isdecimal() and (int(size) > 0) == (kind == LAKE)
    if kind not in KINDS or len(rest) != 1 or rest[0] not in PARTS or not is_size:
        raise SetError(
            f"{name!r} is no workload of tables: use whole:SET, linked:SET or lake:SET:NUMBER, of "
            f"the sets {', '.join(PARTS)}, with :closed behind or not"
        )
    return Form(kind, rest[0], int(size), is_closed)


def choose(data: SqlSet, question: SqlQuestion, form: Form, rng: random.Random) -> tuple[str, ...]:
    """The names of the tables, each once, in no order that means anything."""
    names = KINDS[form.kind](data, question, form, rng)
    if form.is_closed:
        # By name, for a seed to give the same prompts; the order of references is nobody's here.
        names = sorted(data.catalog.references.closure(names))
    return tuple(names)


def _whole(data: SqlSet, question: SqlQuestion, form: Form, rng: random.Random) -> list[str]:
    return list(data.databases[question.database])


def _linked(data: SqlSet, question: SqlQuestion, form: Form, rng: random.Random) -> list[str]:
    there = data.databases[question.database]
    num = max(len(question.gold), min(len(there), len(question.gold) + rng.choice(NUM_EXTRA)))
    return _best(data, question, there, num)


def _lake(data: SqlSet, question: SqlQuestion, form: Form, rng: random.Random) -> list[str]:
    return _best(data, question, data.catalog.names, form.size)


def _best(data: SqlSet, question: SqlQuestion, tables: tuple[str, ...], number: int) -> list[str]:
    """The right tables first, then those that are most like the question."""
    return list(dict.fromkeys((*question.gold, *data.rank(question, tables))))[:number]


KINDS: dict[str, Callable[[SqlSet, SqlQuestion, Form, random.Random], list[str]]] = {
    "whole": _whole,
    "linked": _linked,
    LAKE: _lake,
}
