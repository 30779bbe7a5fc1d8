# SPDX-License-Identifier: Apache-2.0
"""A table as its schema declares it, between a reader and a form."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A column: its name, its type as the source says it, and what is said of it."""

    name: str
    type: str = ""
    is_nullable: bool = True
    comment: str = ""


@dataclass(frozen=True)
class ForeignKey:
    """Columns that refer to another table; no `target_columns` means its primary key."""

    columns: tuple[str, ...]
    target_schema: str
    target_table: str
    target_columns: tuple[str, ...] = ()
    name: str = ""

    @property
    def target(self) -> str:
        """The name of the table that is meant."""
        return qualify(self.target_schema, self.target_table)


@dataclass(frozen=True)
class Declaration:
    """All that a form can write about a table. `schema` is "" where the source names none."""

    schema: str
    table: str
    columns: tuple[Column, ...] = ()
    primary_key: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    comment: str = ""
    primary_key_name: str = ""

    @property
    def name(self) -> str:
        """The name in a catalog."""
        return qualify(self.schema, self.table)


def qualify(schema: str, table: str) -> str:
    """Returns `schema.table`, or the table alone where there is no schema."""
    return f"{schema}.{table}" if schema else table
