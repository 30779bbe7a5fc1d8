# SPDX-License-Identifier: Apache-2.0
"""Schemas and questions of text-to-SQL sets.

A folder, or its folder `sql`, holds for a set NAME

    NAME_schemas.jsonl    a database a line: {"db_id", "tables": [{"name", "label", "columns":
                          [{"name", "label", "type", "pk"}]}], "foreign_keys": [["t.c", "u.d"]]}
    NAME_questions.jsonl  {"db_id", "question", "evidence", "gold_tables": [names]}, the tables
                          being those that the right query reads

Sets are `spider` and `bird`; `sql` is both as one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from depcache.errors import PromptError
from depcache.tables.catalog import Catalog
from depcache.tables.declaration import Column, Declaration, ForeignKey
from depcache.tables.forms import FORMS
from depcache.tables.table import Table
from eval.sets import SetError, read_rows

PARTS: Mapping[str, tuple[str, ...]] = {
    "spider": ("spider",),
    "bird": ("bird",),
    "sql": ("spider", "bird"),
}
MIN_WORD = 3
"""Letters of the shortest word that says something."""


@dataclass(frozen=True, slots=True)
class SqlQuestion:
    """A question, with the hint that the set gives, and the tables that answer it.

    sql  the right query; "" where the set does not say
    """

    text: str
    database: str
    gold: tuple[str, ...]
    sql: str = ""


@dataclass(frozen=True)
class SqlSet:
    """Tables by `database.table`, and what is asked.

    catalog    in the order in which the schemas declare them
    databases  the tables of each, in that order
    declared   what each table declares
    words      of each table: its name, its columns and what they are called
    rarity     of each word, higher for one that few tables have
    """

    name: str
    catalog: Catalog
    databases: Mapping[str, tuple[str, ...]]
    declared: Mapping[str, Declaration]
    words: Mapping[str, frozenset[str]]
    rarity: Mapping[str, float]
    questions: Sequence[SqlQuestion]

    def declare(self, tables: Iterable[str]) -> list[str]:
        """Returns the tables in the order that any client can give them, without knowing others.

        By the name of the database, and within one as its schema declares them.
        """
        return sorted(tables, key=self._places.__getitem__)

    @cached_property
    def _places(self) -> Mapping[str, tuple[str, int]]:
        return {
            table: (database, number)
            for database, tables in self.databases.items()
            for number, table in enumerate(tables)
        }

    def rank(self, question: SqlQuestion, tables: Iterable[str]) -> list[str]:
        """Returns the tables by the words that they share with the question, best first."""
        asked = words_of(question.text)

        def score(table: str) -> float:
            words = self.words[table]
            return sum(self.rarity[word] for word in asked & words) / max(1, len(words)) ** 0.3

        return sorted(tables, key=lambda table: (-score(table), table))


def words_of(text: str) -> frozenset[str]:
    """Returns the words of a text without the s of a plural, those of camelCase apart."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower()
    return frozenset(
        word.removesuffix("s") for word in re.findall(r"[a-z]+", spaced) if len(word) >= MIN_WORD
    )


def file_of(folder: Path, part: str, kind: str) -> Path:
    """The file of a set: its `schemas` or its `questions`."""
    folder = folder / "sql" if (folder / "sql").is_dir() else folder
    return folder / f"{part}_{kind}.jsonl"


def read_sql_set(folder: Path, name: str) -> SqlSet:
    """The set of that name. Raises SetError where it is not there, or a file is none of a set."""
    if name not in PARTS:
        raise SetError(f"{name!r} is no set of tables: use {', '.join(PARTS)}")
    schemas: dict[str, list[tuple[Table, Declaration, frozenset[str]]]] = {}
    questions: list[SqlQuestion] = []
    for part in PARTS[name]:
        file = file_of(folder, part, "schemas")
        for number, row in read_rows(file, ("db_id", "tables", "foreign_keys")):
            try:
                # The last of two databases with one name counts: both sets have `formula_1`.
                schemas[row["db_id"]] = _tables_of(row)
            except (KeyError, TypeError, ValueError, StopIteration, PromptError) as error:
                raise SetError(f"row {number} of {str(file)!r} is no schema ({error})") from error
    tables = [each for found in schemas.values() for each in found]
    words = {table.name: said for table, _, said in tables}
    for part in PARTS[name]:
        needed = ("db_id", "question", "gold_tables")
        for _, row in read_rows(file_of(folder, part, "questions"), needed):
            gold = (f"{row['db_id']}.{table}" for table in row["gold_tables"])
            questions.append(
                SqlQuestion(
                    f"{row['question']} {row.get('evidence') or ''}".strip(),
                    row["db_id"],
                    tuple(dict.fromkeys(table for table in gold if table in words)),
                    row.get("sql") or "",
                )
            )
    counts = Counter(word for said in words.values() for word in said)
    return SqlSet(
        name,
        Catalog(table for table, _, _ in tables),
        {key: tuple(table.name for table, _, _ in found) for key, found in schemas.items()},
        {table.name: declared for table, declared, _ in tables},
        words,
        {word: (1 + count) ** -0.5 for word, count in counts.items()},
        tuple(each for each in questions if each.gold),
    )


def declarations_of(row: dict[str, Any]) -> list[Declaration]:
    """The tables of a database, in the order of its schema."""
    names = sorted((table["name"] for table in row["tables"]), key=len, reverse=True)

    def split(column: str) -> tuple[str, str]:
        # Names may hold dots; of two that fit, the longer one is meant.
        table = next(name for name in names if column.startswith(f"{name}."))
        return table, column[len(table) + 1 :]

    links = [(split(a), split(b)) for a, b in row["foreign_keys"]]
    return [
        Declaration(
            "",
            table["name"],
            tuple(
                Column(each["name"], each["type"], comment=_label(each))
                for each in table["columns"]
            ),
            tuple(each["name"] for each in table["columns"] if each["pk"]),
            tuple(
                ForeignKey((column,), "", target, (target_column,))
                for (owner, column), (target, target_column) in links
                if owner == table["name"]
            ),
        )
        for table in row["tables"]
    ]


def _tables_of(row: dict[str, Any]) -> list[tuple[Table, Declaration, frozenset[str]]]:
    """Each table of a database, what it declares, and its words."""
    found: list[tuple[Table, Declaration, frozenset[str]]] = []
    for table, declared in zip(row["tables"], declarations_of(row), strict=True):
        said = " ".join(f"{each['label']} {each['name']}" for each in (table, *table["columns"]))
        name = f"{row['db_id']}.{table['name']}"
        references = tuple(f"{row['db_id']}.{key.target_table}" for key in declared.foreign_keys)
        text = FORMS["ddl_comments"].write(declared)
        found.append((Table(name, text, references), declared, words_of(said)))
    return found


def _label(column: dict[str, Any]) -> str:
    """What the label says beyond the name."""
    is_name = column["label"].casefold() == column["name"].casefold()
    return "" if is_name else column["label"]
