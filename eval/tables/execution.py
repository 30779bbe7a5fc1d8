# SPDX-License-Identifier: Apache-2.0
"""Whether two SQL queries select the same: run over made-up rows, and read by sqlglot."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from depcache.tables.declaration import Column
from depcache.tables.forms import FORMS
from models.tiny.schemas import Schema
from models.tiny.sql_questions import made_up_value

NUM_ROWS = 8
_NUM_VALUES = 4  # of a column, so that a filter finds several rows
_MAX_STEPS = 2_000_000  # of SQLite's machine, for one query
_STEPS = 10_000
_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION)

Rows = list[tuple[Any, ...]]


class Database:
    """The tables of a schema in memory, full of rows.

    Two databases of one schema have the same values in a column and other rows, unless their
    `seed` is the same. What a column refers to is there.
    """

    def __init__(self, schema: Schema, seed: int) -> None:
        self._values: dict[tuple[str, str], list[str]] = {}
        for each in schema.declarations:
            for column in each.columns:
                drawn = random.Random(f"{each.name}.{column.name}")
                values = [made_up_value(drawn, column) for _ in range(_NUM_VALUES)]
                self._values[each.name, column.name] = values
        rng = random.Random(seed)
        keys = {(each.target, each.key) for each in schema.references}
        links = {(each.source, each.column): each for each in schema.references}
        # Keys of one table are those of no other, so a wrong join finds nothing.
        ranges = {name: 100 * number for number, name in enumerate(schema.nouns, 1)}
        self._connection = sqlite3.connect(":memory:")
        quote = FORMS["ddl"].quote
        for each in schema.declarations:
            names = [column.name for column in each.columns]
            columns = ", ".join(map(quote, names))
            self._connection.execute(f"CREATE TABLE {quote(each.table)} ({columns})")
            for number in range(NUM_ROWS):
                cells = []
                for name in names:
                    if (link := links.get((each.name, name))) is not None:
                        cells.append(str(ranges[link.target] + rng.randrange(NUM_ROWS)))
                    elif (each.name, name) in keys or name in each.primary_key:
                        cells.append(str(ranges[each.name] + number))
                    else:
                        cells.append(rng.choice(self._values[each.name, name]))
                row = f"INSERT INTO {quote(each.table)} VALUES ({', '.join(cells)})"
                self._connection.execute(row)
        self._connection.commit()
        self._steps = 0
        self._connection.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY
        )
        self._connection.set_progress_handler(self._count, _STEPS)

    def close(self) -> None:
        """Give the memory back."""
        self._connection.close()

    def values(self, rng: random.Random) -> Callable[[str, Column], str]:
        """Returns what draws a value that a column of a table has, as SQL writes it."""
        return lambda table, column: rng.choice(self._values[table, column.name])

    def select(self, sql: str) -> Rows | None:
        """The rows that a query selects, sorted; None where it is no query, or takes too long."""
        self._steps = 0
        try:
            return sorted(self._connection.execute(sql).fetchall(), key=repr)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError):
            return None

    def _count(self) -> int:
        self._steps += _STEPS
        return self._steps > _MAX_STEPS


def select_alike(databases: Sequence[Database], sql: str, gold: str) -> bool:
    """Whether a query selects in all databases what `gold` does."""
    return all(
        (found := database.select(sql)) is not None and found == database.select(gold)
        for database in databases
    )


def is_same_query(sql: str, gold: str) -> bool:
    """Whether sqlglot writes both alike: blanks, case of words and needless quotes do not count."""
    return (written := _normalise(sql)) is not None and written == _normalise(gold)


def join_conditions(sql: str) -> frozenset[frozenset[str]] | None:
    """The equalities between two columns that a query asks for, in any order; None if it is none.

    A column is `table.column`, whatever the query calls the table; only `column` where it says no
    table. Conditions of JOIN and of WHERE are alike.
    """
    from sqlglot import exp

    tree = _parse(sql)
    if tree is None:
        return None
    tables = {each.alias_or_name: each.name for each in tree.find_all(exp.Table)}
    pairs = ((each.this, each.expression) for each in tree.find_all(exp.EQ))
    return frozenset(
        frozenset(f"{tables.get(each.table, each.table)}.{each.name}".lstrip(".") for each in pair)
        for pair in pairs
        if all(isinstance(each, exp.Column) for each in pair)
    )


def _normalise(sql: str) -> str | None:
    tree = _parse(sql)
    return None if tree is None else tree.sql("sqlite", identify=True)


def _parse(sql: str) -> Any:
    """The tree of one query, names as SQLite compares them; None where it is not one."""
    import sqlglot
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.normalize_identifiers import normalize_identifiers

    try:
        trees = sqlglot.parse(sql, read="sqlite")
    except (SqlglotError, RecursionError):
        return None
    if len(trees) != 1 or trees[0] is None:
        return None
    return normalize_identifiers(trees[0], dialect="sqlite")
