# SPDX-License-Identifier: Apache-2.0
"""Tokens of prompts that hold some columns of each table: what is gained where a column is a row.

A linker that picks columns gives every question another text of the same table, and no cache finds
it again. With columns as rows of their own, which see their table's name and keys and no other
column (a catalog of `depcache tables load --columns`), each is computed once. By what the prompts
hold and what is reused:

    whole, declared     all columns; a prefix cache, with tables in declared order
    whole, references   all columns; a table sees what it refers to
    some, declared      the columns that are needed; a prefix cache, in declared order
    some, references    the same; a table sees what it refers to, and with other columns is another
    columns             the same; each is a statement, and sees its table's name and keys, and what
                        these refer to

Columns are those of the right query, the keys, and none to four others of each table, the likeliest
by their words. A cache without end, the system cached.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import commonpath
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from depcache.tables.declaration import Column, Declaration
from depcache.tables.forms import FORMS
from eval.tables.prompts import choose, read_form
from eval.tables.sets import (
    SqlQuestion,
    SqlSet,
    words_of,
)
from eval.tables.simulate import NUM_QUICK, SEEDS

WORKLOADS = ("linked:spider", "linked:bird", "lake:sql:12")
SYSTEMS = (
    *("whole, declared", "whole, references"),
    *("some, declared", "some, references", "columns"),
)
CONTEXTS = ("whole", "some", "columns")
NUM_EXTRA = (0, 1, 1, 2, 4)
"""How many columns a linker adds to the right ones of a table; one of these is drawn."""
WIDE_COLUMNS = 20
"""A table with so many columns is wide."""

_FORM = FORMS["ddl_comments"]


@dataclass(frozen=True)
class WideTable:
    """A table in parts, in tokens: its name and keys, and each other column beside.

    columns  each as a line of the table
    rows     each as a statement of its own
    """

    declared: Declaration
    head: int
    columns: Mapping[str, int]
    rows: Mapping[str, int]

    @classmethod
    def make(cls, declared: Declaration, num_tokens: Callable[[str], int]) -> WideTable:
        """Cut a table."""
        bare, others = declared.take_apart()
        head = _FORM.write(bare)
        columns: dict[str, int] = {}
        for each in others:
            longer = _FORM.write(replace(bare, columns=(*bare.columns, each)))
            start = len(commonpath([head, longer]))
            columns[each.name] = num_tokens(longer[start : start + len(longer) - len(head)])
        rows = {each.name: num_tokens(_FORM.write_column(bare, each)) for each in others}
        return cls(declared, num_tokens(head), columns, rows)

    def count(self, chosen: frozenset[str]) -> int:
        """Tokens of the table with these columns beside its keys."""
        return self.head + sum(self.columns[name] for name in chosen)


def columns_of(sql: str) -> frozenset[str]:
    """The columns that a query names, in lower case; none where it cannot be read."""
    try:
        query = sqlglot.parse_one(sql, "sqlite")
    except SqlglotError:
        return frozenset()
    return frozenset(each.name.lower() for each in query.find_all(exp.Column))


def choose_columns(
    table: WideTable, named: frozenset[str], question: SqlQuestion, rng: random.Random
) -> frozenset[str]:
    """Columns beside the keys that a linker gives a prompt.

    named  in lower case those that the right query names, of this table or another
    """
    asked = words_of(question.text)

    def score(column: Column) -> int:
        return len(asked & words_of(f"{column.name} {column.comment}"))

    columns = [each for each in table.declared.columns if each.name in table.columns]
    gold = {each.name for each in columns if each.name.lower() in named}
    others = [each for each in columns if each.name not in gold]
    others.sort(key=lambda column: (-score(column), column.name))
    return frozenset(gold | {each.name for each in others[: rng.choice(NUM_EXTRA)]})


class _Counts:
    """Tokens that are computed, by system, as prompts come."""

    def __init__(self, data: SqlSet, tables: Mapping[str, WideTable]) -> None:
        self.computed = dict.fromkeys(SYSTEMS, 0)
        self.context: dict[str, int] = dict.fromkeys(CONTEXTS, 0)
        self.num_prompts = 0
        self._data = data
        self._tables = tables
        self._known: set[Any] = set()
        references = data.catalog.references
        self._above = {name: set(references.closure([name])) - {name} for name in tables}

    def add(self, chosen: Mapping[str, frozenset[str]]) -> None:
        """A prompt: its tables with the columns of each."""
        self.num_prompts += 1
        here = set(chosen)
        way: dict[str, tuple[Any, ...]] = {"whole": (), "some": ()}
        for name in self._data.declare(chosen):
            table, some = self._tables[name], chosen[name]
            parts = {"whole": frozenset(table.columns), "some": some}
            seen = frozenset(self._above[name] & here)
            for which, columns in parts.items():
                size = table.count(columns)
                self.context[which] += size
                way[which] = (*way[which], (name, columns))
                self._take(f"{which}, declared", way[which], size)
                # With other columns a table is another one, to those that see it as well.
                sees = frozenset((each, chosen[each] if which == "some" else None) for each in seen)
                self._take(f"{which}, references", (name, columns, sees), size)
            self._take("columns", (name, seen), table.head)
            self.context["columns"] += table.head + sum(table.rows[column] for column in some)
            for column in some:
                self._take("columns", (name, seen, column), table.rows[column])

    def per_prompt(self) -> dict[str, float]:
        """How many prompts there were, and the tokens of one."""
        num = max(1, self.num_prompts)
        sizes = {f"context {which}": size / num for which, size in self.context.items()}
        computed = {name: size / num for name, size in self.computed.items()}
        return {"prompts": num, **sizes, **computed}

    def _take(self, system: str, key: Any, size: int) -> None:
        if (system, key) not in self._known:
            self._known.add((system, key))
            self.computed[system] += size


def simulate_wide(
    open_set: Callable[[str], SqlSet], num_tokens: Callable[[str], int], *, quick: bool = False
) -> list[dict[str, Any]]:
    """Two rows for each of `WORKLOADS`: all prompts, and those with a wide table.

    context   tokens of the tables in a prompt: with all columns, with some, and with these as rows
    computed  tokens a prompt, by system
    """
    rows: list[dict[str, Any]] = []
    for name in WORKLOADS:
        data = open_set(read_form(name).set_name)
        tables = {
            name: WideTable.make(declared, num_tokens) for name, declared in data.declared.items()
        }
        runs = [
            _count(data, tables, name, random.Random(seed), NUM_QUICK if quick else None)
            for seed in (SEEDS[:1] if quick else SEEDS)
        ]
        for is_wide, counts in zip((False, True), zip(*runs, strict=True), strict=True):
            mean = _mean([each.per_prompt() for each in counts])
            rows.append({"set": name, "wide": is_wide, **mean})
    return rows


def _count(
    data: SqlSet,
    tables: Mapping[str, WideTable],
    name: str,
    rng: random.Random,
    number: int | None,
) -> tuple[_Counts, _Counts]:
    """Counts of so many prompts of a workload, and of those with a wide table."""
    form = read_form(name)
    every, wide = _Counts(data, tables), _Counts(data, tables)
    for question in rng.sample(data.questions, len(data.questions))[:number]:
        names = choose(data, question, form, rng)
        columns = columns_of(question.sql)
        named = {each: columns if each in question.gold else frozenset[str]() for each in names}
        chosen = {each: choose_columns(tables[each], named[each], question, rng) for each in names}
        every.add(chosen)
        if any(len(tables[each].declared.columns) >= WIDE_COLUMNS for each in names):
            wide.add(chosen)
    return every, wide


def _mean(runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    mean = {key: round(sum(run[key] for run in runs) / len(runs), 1) for key in runs[0]}
    return {
        "prompts": mean["prompts"],
        "context": {which: mean[f"context {which}"] for which in CONTEXTS},
        "computed": {name: mean[name] for name in SYSTEMS},
    }
