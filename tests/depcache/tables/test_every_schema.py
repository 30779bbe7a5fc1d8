# SPDX-License-Identifier: Apache-2.0
"""Every database of Spider and BIRD, as SQL, as an SQLite file and as a tables.json: one catalog.

Set SQL_DATA to a folder with NAME_schemas.jsonl, or to the one above its folder `sql`.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from depcache.tables import load

pytest.importorskip("sqlglot", reason="needs the extra `tables`")
pytest.importorskip("sqlalchemy", reason="needs the extra `tables`")

SETS = {"spider": (117, 647), "bird": (8, 59)}
"""Databases and tables of each, without those that SQLite keeps for itself."""

TYPES = {"number": "NUMERIC", "others": "TEXT", "time": "DATETIME"}


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def split(column: str, tables: list[str]) -> tuple[str, str]:
    """The table and the column of `table.column`; either may hold dots."""
    owner = max((name for name in tables if column.startswith(f"{name}.")), key=len)
    return owner, column[len(owner) + 1 :]


def to_sql(schema: dict[str, Any]) -> str:
    """A database as CREATE TABLE statements, every name in quotes."""
    names = [table["name"] for table in schema["tables"]]
    links = [(split(a, names), split(b, names)) for a, b in schema["foreign_keys"]]
    statements = []
    for table in schema["tables"]:
        lines = [
            f"{quote(each['name'])} {TYPES.get(each['type'], each['type'].upper())}"
            for each in table["columns"]
        ]
        keys = [quote(each["name"]) for each in table["columns"] if each["pk"]]
        lines += [f"PRIMARY KEY ({', '.join(keys)})"] if keys else []
        lines += [
            f"FOREIGN KEY ({quote(column)}) REFERENCES {quote(target)} ({quote(other)})"
            for (owner, column), (target, other) in links
            if owner == table["name"]
        ]
        statements.append(f"CREATE TABLE {quote(table['name'])} ({', '.join(lines)});")
    return "\n".join(statements)


def to_json(schema: dict[str, Any]) -> dict[str, Any]:
    """A database as an entry of a tables.json."""
    names = [table["name"] for table in schema["tables"]]
    columns = [(number, each) for number, t in enumerate(schema["tables"]) for each in t["columns"]]
    place = {(names[n], each["name"]): at for at, (n, each) in enumerate(columns, 1)}
    links = [[place[split(a, names)], place[split(b, names)]] for a, b in schema["foreign_keys"]]
    return {
        "db_id": schema["db_id"],
        "table_names_original": names,
        "table_names": [table["label"] for table in schema["tables"]],
        "column_names_original": [[-1, "*"], *([n, each["name"]] for n, each in columns)],
        "column_names": [[-1, "*"], *([n, each["label"]] for n, each in columns)],
        "column_types": ["text", *(each["type"] for _, each in columns)],
        "primary_keys": [at for at, (_, each) in enumerate(columns, 1) if each["pk"]],
        "foreign_keys": links,
    }


@pytest.mark.skipif("SQL_DATA" not in os.environ, reason="set SQL_DATA to the folder of the sets")
@pytest.mark.parametrize("name", SETS)
def test_three_readers_agree_on_every_database(name: str, tmp_path: Path) -> None:
    data = Path(os.environ["SQL_DATA"])
    file = next(each for each in (data / "sql", data) if each.is_dir()) / f"{name}_schemas.jsonl"
    schemas = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    num_tables = 0
    for schema in schemas:
        schema["tables"] = [t for t in schema["tables"] if not t["name"].startswith("sqlite_")]
        (tmp_path / "one.sql").write_text(to_sql(schema), encoding="utf-8")
        (tmp_path / "one.json").write_text(json.dumps([to_json(schema)]), encoding="utf-8")
        (tmp_path / "one.sqlite").unlink(missing_ok=True)
        with closing(sqlite3.connect(tmp_path / "one.sqlite")) as connection:
            connection.executescript(to_sql(schema))
        found = {}
        for ending in ("sql", "sqlite", "json"):
            loaded = load(tmp_path / f"one.{ending}")
            assert loaded.notes == () and loaded.catalog.references.unknown == (), schema["db_id"]
            found[ending] = {each.name: each for each in loaded.catalog}
        wanted = {each["name"]: set[str]() for each in schema["tables"]}
        for source, target in schema["foreign_keys"]:
            wanted[split(source, list(wanted))[0]].add(split(target, list(wanted))[0])
        for ending, tables in found.items():
            assert {n: set(t.references) for n, t in tables.items()} == wanted, (
                schema["db_id"],
                ending,
            )
        # Some declare a foreign key twice, which SQLite says once.
        texts = [
            {name: {line.rstrip(",") for line in t.text.splitlines()} for name, t in tables.items()}
            for tables in found.values()
        ]
        assert texts[0] == texts[1] == texts[2], schema["db_id"]
        num_tables += len(wanted)
    assert (len(schemas), num_tables) == SETS[name]
