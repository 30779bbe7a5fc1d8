# SPDX-License-Identifier: Apache-2.0
"""Questions about schemas whose answers are SQL, from templates.

What is to be learned is to find tables, columns and joins in the statements of a prompt, and to
write them. An answer is scored by what it selects, see `eval.tables.execution`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

from depcache.tables.declaration import Column
from depcache.tables.forms import FORMS
from depcache.training.examples import Example
from models.tiny.invented import pseudo_word
from models.tiny.schemas import Reference, Schema, make_schema, say

MAX_JOINS = 4
_JOINS = (0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 4)  # one of them is drawn for a question
_FILTER_SHARE = 0.6  # of the questions
_NUMBERS = ("INT", "REAL", "NUM", "DEC", "FLOAT", "DOUBLE", "BIGINT", "SMALLINT")


@dataclass(frozen=True, slots=True)
class Question:
    """`sql` answers `text`; it reads `tables`, with `num_joins` joins."""

    text: str
    sql: str
    num_joins: int
    tables: tuple[str, ...]


def make_questions(
    rng: random.Random, schema: Schema, number: int, value_of: Callable[[str, Column], str]
) -> list[Question]:
    """Up to so many questions, no two alike, of 0 to `MAX_JOINS` joins.

    value_of  from a table and its column to a value, as SQL writes it
    """
    graph = nx.MultiGraph()
    askable = [name for name in schema.nouns if schema.attributes[name]]
    graph.add_nodes_from(askable)
    for each in schema.references:
        graph.add_edge(each.source, each.target, reference=each)
    found: dict[str, Question] = {}
    for _ in range(3 * number):
        if len(found) == number or not askable:
            break
        way = _draw_way(rng, graph, rng.choice(askable), rng.choice(_JOINS))
        if way is None or not schema.attributes[way[-1][0]]:
            continue
        question = _ask(rng, schema, way, value_of)
        found.setdefault(question.text, question)
    return list(found.values())


Way = list[tuple[str, Reference | None]]
"""Tables, each with the reference that joins it to the one before it."""


def _draw_way(rng: random.Random, graph: nx.MultiGraph, start: str, num_joins: int) -> Way | None:
    """The only shortest way from `start` to some table `num_joins` away; None if there is none."""
    ends = [
        name
        for name, far in nx.single_source_shortest_path_length(graph, start, num_joins).items()
        if far == num_joins
    ]
    rng.shuffle(ends)
    for end in ends:
        ways = nx.all_shortest_paths(graph, start, end)
        nodes = next(ways)
        if next(ways, None) is not None:
            continue
        way: Way = [(start, None)]
        for above, below in pairwise(nodes):
            joins = [data["reference"] for data in graph[above][below].values()]
            # Only what is asked first says in which role it means the next.
            if len(joins) > 1 and (above != start or any(each.source != start for each in joins)):
                break
            way.append((below, rng.choice(joins)))
        else:
            return way
    return None


def _ask(
    rng: random.Random, schema: Schema, way: Way, value_of: Callable[[str, Column], str]
) -> Question:
    """A question about the tables at both ends of a way."""
    start, end = way[0][0], way[-1][0]
    shown = rng.choice(schema.attributes[start])
    noun, other = schema.nouns[start], schema.nouns[end]
    first = way[1][1] if len(way) > 1 else None
    words = _HERE if first is None else _THERE if first.source == start else _BACK
    if first is not None and first.role and first.source == start:
        other = f"{first.role} {other}" if len(way) == 2 else f"{first.role}'s {other}"
    selected = [_spell(start, shown.name)]
    others = [each for each in schema.attributes[end] if (end, each) != (start, shown)]
    where = ""
    if others and rng.random() < _FILTER_SHARE:
        column = rng.choice(others)
        value = value_of(end, column)
        where = f" WHERE {_spell(end, column.name)} = {value}"
        said = value.strip("'")
        text = rng.choice(words.filters)
        text = text.format(
            shown=say(shown.name),
            noun=noun,
            other=other,
            an_other=f"an {other}" if other[0] in "aeiou" else f"a {other}",
            column=say(column.name),
            value=said,
        )
    elif len(way) > 1:
        column = rng.choice(schema.attributes[end])
        selected.append(_spell(end, column.name))
        text = rng.choice(words.pairs).format(
            shown=say(shown.name), noun=noun, other=other, column=say(column.name)
        )
    else:
        text = rng.choice(_SHOWN).format(shown=say(shown.name), noun=noun)
    between = [schema.nouns[table] for table, _ in way[1:-1]]
    if between:
        text = f"{text[:-1]}, by way of {' and '.join(between)}{text[-1]}"
    joins = "".join(
        f" JOIN {_spell(table)} ON {_spell(by.source, by.column)} = {_spell(by.target, by.key)}"
        for table, by in way
        if by is not None
    )
    sql = f"SELECT {', '.join(selected)} FROM {_spell(start)}{joins}{where}"
    return Question(text, sql, len(way) - 1, tuple(table for table, _ in way))


_SHOWN = (
    "Show the {shown} of every {noun}.",
    "What is the {shown} of each {noun}?",
    "List the {shown} of all {noun} rows.",
)


@dataclass(frozen=True, slots=True)
class _Words:
    """Templates of questions about the tables at both ends of a way."""

    filters: tuple[str, ...]
    pairs: tuple[str, ...] = ()


_HERE = _Words(
    (
        "Show the {shown} of every {noun} whose {column} is {value}.",
        "What is the {shown} of the {noun} with the {column} {value}?",
    )
)
# They say which way the first reference leads, and name what is between: readers of this size did
# not learn within half an hour to find out which of two tables refers to the other, if any does.
_THERE = _Words(
    (
        "Show the {shown} of every {noun} that refers to {an_other} whose {column} is {value}.",
        "What is the {shown} of the {noun} that refers to the {other} of {column} {value}?",
    ),
    (
        "Show the {shown} of every {noun} with the {column} of the {other} that it refers to.",
        "List each {noun} by its {shown}, and the {column} of the {other} it refers to.",
    ),
)
_BACK = _Words(
    (
        "Show the {shown} of every {noun} with {an_other} behind it whose {column} is {value}.",
        "What is the {shown} of the {noun} behind which is the {other} of {column} {value}?",
    ),
    (
        "Show the {shown} of every {noun} with the {column} of the {other} behind it.",
        "List each {noun} by its {shown}, and the {column} of the {other} behind it.",
    ),
)


def made_up_value(rng: random.Random, column: Column) -> str:
    """A value of a column as SQL writes it: a number, or a word in quotes."""
    if column.type.upper().startswith(_NUMBERS):
        return str(rng.randint(1, 9999))
    return f"'{pseudo_word(rng).capitalize()}'"


def make_examples(
    seed: int, *, sizes: tuple[int, int] = (4, 12), num_questions: int = 8
) -> Iterator[Example]:
    """Questions about new schemas without end, those of a schema behind each other.

    The tables of a prompt come in any order.
    """
    rng = random.Random(seed)
    while True:
        schema = make_schema(rng, rng.randint(*sizes))
        tables = list(schema.tables)
        rng.shuffle(tables)
        questions = make_questions(
            rng, schema, num_questions, lambda _, column: made_up_value(rng, column)
        )
        for each in questions:
            yield Example(each.text, (), each.sql, tables=tuple(tables))


def _spell(*names: str) -> str:
    """`table` or `table.column`, as SQL writes it."""
    return ".".join(map(FORMS["ddl"].quote, names))
