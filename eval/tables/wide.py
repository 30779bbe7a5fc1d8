# SPDX-License-Identifier: Apache-2.0
"""Tokens of prompts that hold some columns of each table: what is gained where a column is a row.

A linker that picks columns gives every question another text of the same table, and no cache finds
it again. Where a table is a tree, its name and keys the root and each other column a leaf that sees
nothing but them, a column is computed once. By what the prompts hold and what is reused:

    whole, declared     all columns; a prefix cache, with tables in declared order
    whole, references   all columns; a table sees what it refers to
    some, declared      the columns that are needed; a prefix cache, in declared order
    some, references    the same; a table sees what it refers to, and with other columns is another
    columns             the same; a column sees its table's name and keys, and what these refer to

Columns are those of the right query, the keys, and none to four others of each table, the likeliest
by their words. A cache without end, the system cached.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from depcache.tables.declaration import Column, Declaration
from depcache.tables.forms import FORMS
from eval.sets import read_rows
from eval.tables.prompts import choose, read_form
from eval.tables.sets import (
    PARTS,
    SqlQuestion,
    SqlSet,
    declarations_of,
    file_of,
    read_sql_set,
    words_of,
)
from eval.tables.simulate import NUM_QUICK, SEEDS

WORKLOADS = ("linked:spider", "linked:bird", "lake:sql:12")
SYSTEMS = (
    *("whole, declared", "whole, references"),
    *("some, declared", "some, references", "columns"),
)
NUM_EXTRA = (0, 1, 1, 2, 4)
"""How many columns a linker adds to the right ones of a table; one of these is drawn."""
WIDE_COLUMNS = 20
"""A table with so many columns is wide."""

_FORM = FORMS["ddl_comments"]


@dataclass(frozen=True)
class WideTable:
    """A table in parts: what its name and keys are in tokens, and each other column beside."""

    declared: Declaration
    head: int
    columns: Mapping[str, int]

    @classmethod
    def make(cls, declared: Declaration, num_tokens: Callable[[str], int]) -> WideTable:
        """Cut a table."""
        keys = {*declared.primary_key, *(c for key in declared.foreign_keys for c in key.columns)}
        own = tuple(each for each in declared.columns if each.name in keys)
        bare = replace(declared, columns=own)
        head = _FORM.write(bare)
        columns: dict[str, int] = {}
        for each in declared.columns:
            if each.name not in keys:
                longer = _FORM.write(replace(bare, columns=(*own, each)))
                columns[each.name] = num_tokens("x" * (len(longer) - len(head)))
        return cls(declared, num_tokens(head), columns)

    def count(self, chosen: frozenset[str]) -> int:
        """Tokens of the table with these columns beside its keys."""
        return self.head + sum(self.columns[name] for name in chosen)


def columns_of(sql: str, tables: Sequence[Declaration]) -> dict[str, set[str]]:
    """The columns that a query names, by table; one that several tables have counts for each."""
    try:
        named = {
            each.name.lower() for each in sqlglot.parse_one(sql, "sqlite").find_all(exp.Column)
        }
    except SqlglotError:
        named = set()
    return {
        table.table: {each.name for each in table.columns if each.name.lower() in named}
        for table in tables
    }


def choose_columns(
    table: WideTable, gold: set[str], question: SqlQuestion, rng: random.Random
) -> frozenset[str]:
    """Columns beside the keys that a linker gives a prompt."""
    asked = words_of(question.text)

    def score(column: Column) -> int:
        return len(asked & words_of(f"{column.name} {column.comment}"))

    others = [c for c in table.declared.columns if c.name in table.columns and c.name not in gold]
    others.sort(key=lambda column: (-score(column), column.name))
    extra = others[: rng.choice(NUM_EXTRA)]
    return frozenset({c.name for c in extra} | (gold & set(table.columns)))


class _Counts:
    """Tokens that are computed, by system, as prompts come."""

    def __init__(self, data: SqlSet, tables: Mapping[str, WideTable]) -> None:
        self.computed = dict.fromkeys(SYSTEMS, 0)
        self.context = {"whole": 0, "some": 0}
        self._data = data
        self._tables = tables
        self._known: set[Any] = set()
        references = data.catalog.references
        self._above = {name: set(references.closure([name])) - {name} for name in tables}

    def add(self, chosen: Mapping[str, frozenset[str]]) -> None:
        """A prompt: its tables with the columns of each."""
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
            for column in some:
                self._take("columns", (name, seen, column), table.columns[column])

    def _take(self, system: str, key: Any, size: int) -> None:
        if (system, key) not in self._known:
            self._known.add((system, key))
            self.computed[system] += size


def simulate_wide(
    folder: Path, num_tokens: Callable[[str], int], *, quick: bool = False
) -> list[dict[str, Any]]:
    """Two rows for each of `WORKLOADS`: all prompts, and those with a wide table.

    context   tokens of the tables in a prompt, with all columns and with some
    computed  tokens a prompt, by system
    """
    rows: list[dict[str, Any]] = []
    for name in WORKLOADS:
        form = read_form(name)
        data = read_sql_set(folder, form.set_name)
        declared = dict(_declarations(folder, form.set_name))
        tables = {
            each.name: WideTable.make(declared[each.name], num_tokens) for each in data.catalog
        }
        gold = _gold_columns(folder, form.set_name, declared)
        for is_wide in (False, True):
            runs: list[dict[str, float]] = []
            for seed in SEEDS[:1] if quick else SEEDS:
                rng = random.Random(seed)
                asked = rng.sample(data.questions, len(data.questions))
                counts, num = _Counts(data, tables), 0
                for question in asked[:NUM_QUICK] if quick else asked:
                    names = choose(data, question, form, rng)
                    found = gold.get((question.database, question.text), {})
                    chosen = {
                        each: choose_columns(tables[each], found.get(each, set()), question, rng)
                        for each in names
                    }
                    most = max(len(tables[each].declared.columns) for each in names)
                    if not is_wide or most >= WIDE_COLUMNS:
                        counts.add(chosen)
                        num += 1
                runs.append(_per_prompt(counts, num))
            rows.append({"workload": name, "wide": is_wide, **_mean(runs)})
    return rows


def _declarations(folder: Path, set_name: str) -> Iterator[tuple[str, Declaration]]:
    for part in PARTS[set_name]:
        for _, row in read_rows(file_of(folder, part, "schemas"), ("db_id", "tables")):
            for declared in declarations_of(row):
                yield f"{row['db_id']}.{declared.table}", declared


def _gold_columns(
    folder: Path, set_name: str, declared: Mapping[str, Declaration]
) -> dict[tuple[str, str], dict[str, set[str]]]:
    """By database and question the columns that its query names, by table."""
    found: dict[tuple[str, str], dict[str, set[str]]] = {}
    for part in PARTS[set_name]:
        for _, row in read_rows(file_of(folder, part, "questions"), ("db_id", "question")):
            names = [f"{row['db_id']}.{table}" for table in row["gold_tables"]]
            there = [declared[each] for each in names if each in declared]
            columns = columns_of(row.get("sql") or "", there)
            text = f"{row['question']} {row.get('evidence') or ''}".strip()
            found[row["db_id"], text] = {
                f"{row['db_id']}.{table}": some for table, some in columns.items()
            }
    return found


def _per_prompt(counts: _Counts, num: int) -> dict[str, float]:
    num = max(1, num)
    sizes = {f"context {which}": size / num for which, size in counts.context.items()}
    return {"prompts": num, **sizes, **{name: n / num for name, n in counts.computed.items()}}


def _mean(runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    mean = {key: round(sum(run[key] for run in runs) / len(runs), 1) for key in runs[0]}
    return {
        "prompts": mean["prompts"],
        "context": {which: mean[f"context {which}"] for which in ("whole", "some")},
        "computed": {name: mean[name] for name in SYSTEMS},
    }
