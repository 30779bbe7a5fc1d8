# SPDX-License-Identifier: Apache-2.0
"""Read schemas from `tables.json` as the data sets Spider and BIRD publish it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from depcache.errors import PromptError, shorten
from depcache.tables.declaration import Column, Declaration, ForeignKey

# The data sets know five types; these are their names in SQL.
TYPES = {"number": "NUMERIC", "others": "TEXT", "time": "DATETIME"}


def read_json(text: str, *, databases: Iterable[str] = ()) -> tuple[list[Declaration], list[str]]:
    """The tables of a `tables.json`, and notes.

    databases  take only these. Where several are left, a table's schema is its database.

    Raises PromptError for what is no such file, or has no such database.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptError(
            f"it is no JSON ({shorten(str(error))}): give a tables.json of Spider or BIRD"
        ) from error
    entries = data if isinstance(data, list) else [data]
    if not all(isinstance(each, dict) for each in entries):
        raise PromptError(f"it holds {shorten(data)}: give a tables.json of Spider or BIRD")
    wanted = list(databases)
    known = [str(entry.get("db_id", "")) for entry in entries]
    for name in wanted:
        if name not in known:
            raise PromptError(
                f"there is no database {shorten(name)}: it has {', '.join(known[:5])}"
                + (f" and {len(known) - 5} more" if len(known) > 5 else "")
            )
    taken = [
        (name, entry)
        for name, entry in zip(known, entries, strict=True)
        if not wanted or name in wanted
    ]
    tables: list[Declaration] = []
    for name, entry in taken:
        try:
            tables += _tables_of(entry, name if len(taken) > 1 else "")
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise PromptError(
                f"database {shorten(name)} is not as in a tables.json of Spider or BIRD "
                f"({type(error).__name__}: {shorten(str(error))}): it needs db_id, "
                "table_names_original, column_names_original, column_types, primary_keys and "
                "foreign_keys"
            ) from error
    return tables, []


def _tables_of(entry: dict[str, Any], schema: str) -> list[Declaration]:
    tables: list[str] = entry["table_names_original"]
    columns: list[tuple[int, str]] = [
        (int(t), str(name)) for t, name in entry["column_names_original"]
    ]
    labels = [str(name) for _, name in entry.get("column_names", columns)]
    types = entry["column_types"]
    # A key of several columns is a list of them in BIRD, several numbers in Spider.
    primary = {
        number
        for each in entry["primary_keys"]
        for number in (each if isinstance(each, list) else [each])
    }
    links = [(_at(columns, a), _at(columns, b)) for a, b in entry["foreign_keys"]]
    found: list[Declaration] = []
    for number, table in enumerate(tables):
        own = [i for i, (owner, _) in enumerate(columns) if owner == number]
        found.append(
            Declaration(
                schema,
                str(table),
                columns=tuple(
                    Column(
                        columns[i][1],
                        TYPES.get(types[i], str(types[i]).upper()),
                        comment=_label(labels[i], columns[i][1]),
                    )
                    for i in own
                ),
                primary_key=tuple(columns[i][1] for i in own if i in primary),
                foreign_keys=tuple(
                    ForeignKey((column,), schema, str(tables[target]), (target_column,))
                    for (owner, column), (target, target_column) in links
                    if owner == number
                ),
                comment=_label(str(entry.get("table_names", tables)[number]), str(table)),
            )
        )
    return found


def _at(columns: list[tuple[int, str]], number: Any) -> tuple[int, str]:
    """The column of this number. IndexError where there is none: number 0 is the `*` of all."""
    if not 0 < number < len(columns):
        raise IndexError(f"foreign key of column {number}")
    return columns[number]


def _label(label: str, name: str) -> str:
    """What a label says beyond the name."""
    plain = label.casefold().replace("_", " ")
    return "" if plain == name.casefold().replace("_", " ") else label
