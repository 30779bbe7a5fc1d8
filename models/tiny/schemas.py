# SPDX-License-Identifier: Apache-2.0
"""Made-up schemas of databases: tables, their columns, and how they refer to each other.

Every schema is new: nouns and words that are no words, references drawn as chains, stars, bridges
and joins, columns of equal names in several tables, foreign keys named as their target, by a role
or short, and declared or not. Names are words in lower case with `_` between, as a question says
them, and nearly all of them are words that every schema draws from: readers of this size did not
learn within 40 minutes to spell names in another way than the question, or to join tables whose
names are no words.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import yaml

from depcache.tables.declaration import Column, Declaration, ForeignKey
from depcache.tables.forms import FORMS, RESERVED
from depcache.tables.table import Table
from models.tiny.invented import pseudo_word
from models.tiny.stages import RECIPE

_NUM_COLUMNS = (2, 5)
_PSEUDO_SHARE = 0.05  # of the tables and columns, with a name that is no word
_COMMON_SHARE = 0.6  # of the columns, from the few that a schema has in many tables
_NUM_COMMON = 4
_LOOSE_SHARE = 0.15  # of the tables, that neither refer nor are referred to
_DECLARED_SHARE = 0.5  # of the schemas, with FOREIGN KEY clauses
_TWICE_SHARE = 0.12  # of the declared references, with a second one to the same table, by a role
_KEY_NAMES = ("id", "id", "{}-id", "{}-code")
_REFERENCE_NAMES = ("{}-id", "{}-id", "{}", "{}-ref", "role")

Edges = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Reference:
    """`source.column` holds a `key` of `target`; `role` is "" where the column names none."""

    source: str
    column: str
    target: str
    key: str
    role: str = ""


@dataclass(frozen=True, slots=True)
class Schema:
    """Tables of one database.

    nouns       what a thing of a table is called, by the table's name
    attributes  columns that are no keys, by the table's name
    references  all of them, declared or not
    """

    declarations: tuple[Declaration, ...]
    nouns: dict[str, str]
    attributes: dict[str, tuple[Column, ...]]
    references: tuple[Reference, ...]

    @property
    def tables(self) -> tuple[Table, ...]:
        """As a prompt has them, in the order in which they are declared."""
        return tuple(
            Table(each.name, FORMS["ddl"].write(each), tuple(k.target for k in each.foreign_keys))
            for each in self.declarations
        )


def _chain(rng: random.Random, num: int) -> Edges:
    return [(at, at + 1) for at in range(num - 1)]


def _star(rng: random.Random, num: int) -> Edges:
    is_inward = rng.random() < 0.5
    return [(at, 0) if is_inward else (0, at) for at in range(1, num)]


def _bridge(rng: random.Random, num: int) -> Edges:
    """Every second table joins the two beside it."""
    return [(at, other) for at in range(1, num, 2) for other in (at - 1, at + 1) if other < num]


def _joins(rng: random.Random, num: int) -> Edges:
    return [
        (at, other)
        for at in range(1, num)
        for other in rng.sample(range(at), min(at, rng.choice((1, 1, 2))))
    ]


def _tree(rng: random.Random, num: int) -> Edges:
    return [(at, (at - 1) // 2) for at in range(1, num)]


def _ring(rng: random.Random, num: int) -> Edges:
    return [(at, (at + 1) % num) for at in range(num)] if num > 2 else _chain(rng, num)


SHAPES: dict[str, Callable[[random.Random, int], Edges]] = {
    "chain": _chain,
    "star": _star,
    "bridge": _bridge,
    "joins": _joins,
}
"""How references are drawn: pairs of numbers of tables, the first refers to the second."""

HELD_OUT_SHAPES: dict[str, Callable[[random.Random, int], Edges]] = {"tree": _tree, "ring": _ring}
"""Shapes that no reader is trained on."""


def make_schema(
    rng: random.Random,
    num_tables: int,
    *,
    pseudo_share: float = _PSEUDO_SHARE,
    is_held_out: bool = False,
    has_new_shapes: bool = False,
) -> Schema:
    """A schema of so many tables.

    pseudo_share    of the tables and columns, with a name that is no word
    is_held_out     names of tables, columns and roles that are drawn for no other schema
    has_new_shapes  references drawn as `HELD_OUT_SHAPES` has it
    """
    words = _load()
    part = "held_out_" if is_held_out else ""
    is_declared = rng.random() < _DECLARED_SHARE
    key_name, reference_name = rng.choice(_KEY_NAMES), rng.choice(_REFERENCE_NAMES)
    if reference_name == "role" and not is_declared:
        reference_name = "{}-id"  # nothing else would say what is meant
    nouns = _draw_nouns(rng, num_tables, words[f"{part}table"], pseudo_share)
    names = [_spell(noun) for noun in nouns]
    keys = [_spell(key_name.format(noun)) for noun in nouns]
    shapes = HELD_OUT_SHAPES if has_new_shapes else SHAPES
    num_linked = max(2, num_tables - sum(rng.random() < _LOOSE_SHARE for _ in range(num_tables)))
    edges = shapes[rng.choice(list(shapes))](rng, num_linked)
    common = [
        (_draw_word(rng, words[part + kind], pseudo_share), kind)
        for kind in ("text", "number")
        for _ in range(_NUM_COMMON // 2)
    ]
    references: list[Reference] = []
    attributes: dict[str, tuple[Column, ...]] = {}
    declarations: list[Declaration] = []
    for at, (name, key) in enumerate(zip(names, keys, strict=True)):
        taken = set(RESERVED) | {key.lower()}
        own: list[Reference] = []
        for target in (target for source, target in edges if source == at):
            ways = [reference_name]
            if is_declared and rng.random() < _TWICE_SHARE:
                ways = ["role", "role"]
            for way in ways:
                role = rng.choice(words[f"{part}role"]) if way == "role" else ""
                column = _spell(role or way.format(nouns[target]))
                if _take(column, taken):
                    own.append(Reference(name, column, names[target], keys[target], _phrase(role)))
        attributes[name] = _draw_attributes(rng, part, common, taken, pseudo_share)
        references += own
        columns = [*(Column(each.column, "INTEGER") for each in own), *attributes[name]]
        rng.shuffle(columns)
        declared = own if is_declared else ()
        foreign_keys = (ForeignKey((by.column,), "", by.target, (by.key,)) for by in declared)
        columns = [Column(key, "INTEGER"), *columns]
        declarations.append(Declaration("", name, tuple(columns), (key,), tuple(foreign_keys)))
    rng.shuffle(declarations)
    return Schema(
        tuple(declarations),
        dict(zip(names, map(_phrase, nouns), strict=True)),
        attributes,
        tuple(references),
    )


def _draw_attributes(
    rng: random.Random,
    part: str,
    common: Sequence[tuple[str, str]],
    taken: set[str],
    pseudo_share: float,
) -> tuple[Column, ...]:
    """Columns that are no keys; their names are taken from then on.

    part    prefix of the lists of words
    common  words that many tables of the schema have, each with `text` or `number`
    """
    words = _load()
    found: list[Column] = []
    for _ in range(rng.randint(*_NUM_COLUMNS)):
        kind = rng.choice(("text", "number"))
        word = _draw_word(rng, words[part + kind], pseudo_share)
        if rng.random() < _COMMON_SHARE:
            word, kind = rng.choice(common)
        column = _spell(word)
        if _take(column, taken):
            found.append(Column(column, rng.choice(words[f"type_{kind}"])))
    return tuple(found)


def _take(name: str, taken: set[str]) -> bool:
    """Whether a name is free; it is taken then. SQL does not care about case."""
    is_free = name.lower() not in taken
    taken.add(name.lower())
    return is_free


def schema_of(declarations: Sequence[Declaration]) -> Schema:
    """The schema of a real database: its things are called as its tables are.

    Columns that are keys are not asked about, and keys of several columns join nothing.
    """
    references = tuple(
        Reference(each.name, key.columns[0], key.target, key.target_columns[0])
        for each in declarations
        for key in each.foreign_keys
        if len(key.columns) == len(key.target_columns) == 1
    )
    keys = {(each.name, name) for each in declarations for name in each.primary_key}
    keys |= {(each.source, each.column) for each in references}
    return Schema(
        tuple(declarations),
        {each.name: say(each.table) for each in declarations},
        {
            each.name: tuple(c for c in each.columns if (each.name, c.name) not in keys)
            for each in declarations
        },
        references,
    )


def _draw_nouns(
    rng: random.Random, number: int, words: Sequence[str], pseudo_share: float
) -> list[str]:
    """So many nouns, none twice, and none that SQL has for itself."""
    found: dict[str, None] = {}
    while len(found) < number:
        noun = _draw_word(rng, words, pseudo_share)
        if noun not in RESERVED:
            found[noun] = None
    return list(found)


def _draw_word(rng: random.Random, words: Sequence[str], pseudo_share: float) -> str:
    return pseudo_word(rng) if rng.random() < pseudo_share else rng.choice(words)


def _spell(word: str) -> str:
    return word.replace("-", "_")


def _phrase(name: str) -> str:
    return name.replace("-", " ")


def say(column: str) -> str:
    """Returns the words of a column's name, whatever its spelling."""
    words = "".join(f" {each}" if each.isupper() else each for each in column)
    return " ".join((column if column.isupper() else words).replace("_", " ").lower().split())


@cache
def _load() -> dict[str, list[str]]:
    data = yaml.safe_load((RECIPE / "schemas.yaml").read_text(encoding="utf-8"))
    return {key: value.split() for key, value in data.items()}
