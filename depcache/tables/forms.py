# SPDX-License-Identifier: Apache-2.0
"""How a table is written in a prompt, as data: a form is a few templates for `str.format`.

LangChain's `SQLDatabase.get_table_info` writes what SQLAlchemy's `CreateTable` compiles to, and
LlamaIndex's `SQLDatabase.get_single_table_info` one sentence. Their forms here spell a table the
same way, without sample rows. Only a database knows the defaults and constraints that LangChain
writes, so from any other source they are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from depcache.errors import ConfigError, shorten
from depcache.tables.declaration import Column, Declaration, ForeignKey, qualify

# Words that no SQL engine takes as a bare name, as far as schemas use them.
_RESERVED = (
    "all and as asc between by case check column constraint create cross default delete desc "
    "distinct drop else end exists foreign from full group having in index inner insert into is "
    "join key left like limit not null on or order outer primary references right select set "
    "table then to union unique update user using values when where with"
)
RESERVED = frozenset(_RESERVED.split())


@dataclass(frozen=True)
class Form:
    """Templates for `str.format`; a template uses the slots it wants.

    table          slots name, table (without its schema), lines (columns and keys), columns,
                   foreign_keys, table_comment
    added_column   name, table, column (as `column` writes it, without blanks around); a column that
                   is a row of its own
    column         name, type (a blank and the type), type_name, plain_type (in SQLAlchemy's words
                   where the source is a database, else type_name), not_null (as declared),
                   required (of the primary key too), comment, comma
    primary_key    columns, constraint, comma
    foreign_key    columns, target, target_columns, column_list, target_table, target_column_list,
                   constraint, comma; `..._list` as Python writes a list of names
    foreign_keys   keys; what stands in `table` where there are any
    comma          behind each line but the last
    newline        between lines
    comment        text, on one line; how a column's comment goes into its line
    table_comment  the same of the table
    bare           a regular expression of the names that need no quotes
    reserved       names that need quotes all the same, in lower case
    is_compiled    whether a table of a database is what SQLAlchemy compiles, and the templates are
                   for other sources and for columns that are rows of their own
    """

    table: str = "CREATE TABLE {name} (\n{lines}\n)"
    column: str = "    {name}{type}{not_null}{comma}{comment}"
    added_column: str = "ALTER TABLE {name} ADD COLUMN {column}"
    primary_key: str = "    PRIMARY KEY ({columns}){comma}"
    foreign_key: str = "    FOREIGN KEY ({columns}) REFERENCES {target}{target_columns}{comma}"
    foreign_keys: str = "{keys}"
    comma: str = ","
    newline: str = "\n"
    comment: str = ""
    table_comment: str = ""
    bare: str = r"[A-Za-z_]\w*"
    reserved: frozenset[str] = RESERVED
    is_compiled: bool = False

    def write(self, declared: Declaration) -> str:
        """The text of a table. Raises ConfigError when a template has a slot that is not there."""
        if self.is_compiled and declared.compiled:
            return declared.compiled
        columns = [self._column(declared, each) for each in declared.columns]
        foreign_keys = [self._foreign_key(each) for each in declared.foreign_keys]
        keys: list[Line] = []
        if declared.primary_key:
            keys.append(
                lambda comma: self.primary_key.format(
                    columns=self._names(declared.primary_key),
                    constraint=self._constraint(declared.primary_key_name),
                    comma=comma,
                )
            )
        with _naming_slots():
            linked = self._join(foreign_keys)
            return self.table.format(
                name=self._name(declared.schema, declared.table),
                table=self.quote(declared.table),
                lines=self._join([*columns, *keys, *foreign_keys]),
                columns=self._join(columns),
                foreign_keys=self.foreign_keys.format(keys=linked) if linked else "",
                table_comment=self._comment(self.table_comment, declared.comment),
            )

    def write_column(self, declared: Declaration, column: Column) -> str:
        """The text of a column beside its table. Raises as `write`."""
        with _naming_slots():
            return self.added_column.format(
                name=self._name(declared.schema, declared.table),
                table=self.quote(declared.table),
                column=self._column(declared, column)("").strip(),
            )

    def _column(self, declared: Declaration, column: Column) -> Line:
        not_null = "" if column.is_nullable else " NOT NULL"
        return lambda comma: self.column.format(
            name=self.quote(column.name),
            type=f" {column.type}" if column.type else "",
            type_name=column.type,
            plain_type=column.plain_type or column.type,
            not_null=not_null,
            required=" NOT NULL" if column.name in declared.primary_key else not_null,
            comment=self._comment(self.comment, column.comment),
            comma=comma,
        )

    def _foreign_key(self, key: ForeignKey) -> Line:
        return lambda comma: self.foreign_key.format(
            columns=self._names(key.columns),
            target=self._name(key.target_schema, key.target_table),
            target_columns=f" ({self._names(key.target_columns)})" if key.target_columns else "",
            column_list=list(key.columns),
            target_table=self.quote(key.target_table),
            target_column_list=list(key.target_columns),
            constraint=self._constraint(key.name),
            comma=comma,
        )

    def _join(self, lines: list[Line]) -> str:
        last = len(lines) - 1
        return self.newline.join(
            line(self.comma if number < last else "") for number, line in enumerate(lines)
        )

    def _comment(self, template: str, text: str) -> str:
        # A line break would end an SQL comment and begin a column.
        return template.format(text=" ".join(text.split())) if text.strip() else ""

    def _constraint(self, name: str) -> str:
        return f"CONSTRAINT {self.quote(name)} " if name else ""

    def _names(self, names: Iterable[str]) -> str:
        return ", ".join(map(self.quote, names))

    def _name(self, schema: str, table: str) -> str:
        return qualify(self.quote(schema) if schema else "", self.quote(table))

    def quote(self, name: str) -> str:
        """Returns a name as this form writes it: in quotes where SQL needs them."""
        is_bare = re.fullmatch(self.bare, name) and name.lower() not in self.reserved
        return name if is_bare else '"' + name.replace('"', '""') + '"'


@contextmanager
def _naming_slots() -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ConfigError(f"a template of the form has no slot {error}: correct it") from error


Line = Callable[[str], str]
"""From the comma behind it to a line."""

FORMS: dict[str, Form] = {
    "ddl": Form(),
    "ddl_comments": Form(
        table="{table_comment}CREATE TABLE {name} (\n{lines}\n)",
        comment=" -- {text}",
        table_comment="-- {text}\n",
    ),
    "langchain": Form(
        table="CREATE TABLE {name} (\n{lines}\n)",
        column="\t{name}{type}{required}{comma}",
        primary_key="\t{constraint}PRIMARY KEY ({columns}){comma}",
        foreign_key="\t{constraint}FOREIGN KEY({columns}) REFERENCES {target}"
        "{target_columns}{comma}",
        comma=", ",
        bare=r"[a-z_][a-z0-9_$]*",
        is_compiled=True,
    ),
    "llamaindex": Form(
        table="Table '{table}' has columns: {columns}, {table_comment}{foreign_keys}.",
        added_column="Table '{table}' has column: {column}.",
        column="{name} ({plain_type}){comment}{comma}",
        foreign_key="{column_list} -> {target_table}.{target_column_list}{comma}",
        foreign_keys=" and foreign keys: {keys}",
        comma=", ",
        newline="",
        comment=": '{text}'",
        table_comment="with comment: ({text}) ",
        bare=r"(?s:.*)",
        reserved=frozenset(),
    ),
}


def get_form(form: str | Form) -> Form:
    """A form by its name, or itself. Raises ConfigError, with the names, for anything else."""
    found = form if isinstance(form, Form) else FORMS.get(form) if isinstance(form, str) else None
    if found is None:
        raise ConfigError(f"{shorten(form)} is no form of a table: use {', '.join(FORMS)}")
    return found
