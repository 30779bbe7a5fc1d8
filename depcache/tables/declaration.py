# SPDX-License-Identifier: Apache-2.0
"""A table as its schema declares it, between a reader and a form."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Column:
    """A column: its name, its type as the source says it, and what is said of it.

    plain_type  the type in SQLAlchemy's own words, whatever the database calls it (ARRAY for
                TEXT[]); "" where the source is no database
    """

    name: str
    type: str = ""
    is_nullable: bool = True
    comment: str = ""
    plain_type: str = ""


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
    """All that a form can write about a table.

    schema    "" where the source names none
    compiled  the CREATE TABLE that SQLAlchemy compiles, in the spelling of the database, with
              defaults and constraints; "" where the source is no database or nobody asked for it
    """

    schema: str
    table: str
    columns: tuple[Column, ...] = ()
    primary_key: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    comment: str = ""
    primary_key_name: str = ""
    compiled: str = ""

    @property
    def name(self) -> str:
        """The name in a catalog."""
        return qualify(self.schema, self.table)

    def take_apart(self) -> tuple[Declaration, tuple[Column, ...]]:
        """The table with the columns of its keys alone, and its other columns.

        Keys may spell their columns in another case. Where there is no key, the first column stays.
        """
        named = [*self.primary_key, *(name for key in self.foreign_keys for name in key.columns)]
        keys = {name.casefold() for name in named}
        own = tuple(each for each in self.columns if each.name.casefold() in keys)
        own = own or self.columns[:1]
        others = tuple(each for each in self.columns if each not in own)
        return replace(self, columns=own, compiled=""), others


def qualify(schema: str, table: str) -> str:
    """Returns `schema.table`, or the table alone where there is no schema."""
    return f"{schema}.{table}" if schema else table
