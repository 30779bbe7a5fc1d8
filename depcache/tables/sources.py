# SPDX-License-Identifier: Apache-2.0
"""From a source, whichever it is, to a catalog: the reader by its name, then one way for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from depcache.errors import PromptError, shorten
from depcache.tables.catalog import Catalog, fits
from depcache.tables.declaration import Declaration, ForeignKey
from depcache.tables.forms import Form, get_form
from depcache.tables.read_database import read_database, read_sqlite
from depcache.tables.read_json import read_json
from depcache.tables.read_sql import check_dialect, read_sql
from depcache.tables.table import Table
from depcache.text_file import read_text


@dataclass(frozen=True)
class Loaded:
    """A catalog, and a sentence for each thing of its source that is not in it."""

    catalog: Catalog
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Options:
    """What a reader is told beside the source; see `load`, and `Form.is_compiled`."""

    dialect: str | None = None
    schemas: tuple[str, ...] = ()
    views: bool = False
    is_compiled: bool = False


Declared = tuple[list[Declaration], list[str]]


def _sql(source: str, options: Options) -> Declared:
    text = read_text(Path(source))
    return read_sql(text, dialect=options.dialect, views=options.views)


def _json(source: str, options: Options) -> Declared:
    try:
        return read_json(read_text(Path(source)), databases=options.schemas)
    except PromptError as error:
        raise PromptError(f"{source!r} cannot be read as a schema: {error}") from error


def _sqlite(source: str, options: Options) -> Declared:
    return read_sqlite(Path(source), views=options.views, is_compiled=options.is_compiled)


def _database(url: str, options: Options) -> Declared:
    return read_database(
        url, schemas=options.schemas, views=options.views, is_compiled=options.is_compiled
    )


READERS: dict[str, Callable[[str, Options], Declared]] = {
    ".sql": _sql,
    ".ddl": _sql,
    ".json": _json,
    ".sqlite": _sqlite,
    ".sqlite3": _sqlite,
    ".db": _sqlite,
}
"""The end of a file's name -> who reads it. A source with "://" is a URL."""


def load(
    source: str | Path,
    *,
    form: str | Form = "ddl",
    dialect: str | None = None,
    schemas: Sequence[str] = (),
    views: bool = False,
    columns: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Loaded:
    """The tables of a source.

    source   an .sql file, a tables.json of Spider or BIRD, an .sqlite or .db file, the URL of a
             database, or a catalog (.jsonl), which is taken as it is written
    form     how a table is written: a `Form`, or the name of one
    dialect  of an .sql file; None guesses
    schemas  of a database, or the databases of a tables.json; () is the default one, or all
    views    whether views count as tables
    columns  whether columns are entries of their own, for prompts that hold some of a table's: the
             table is written with its keys alone, and each other column, `table.column`, refers to
             it
    include  patterns of names of tables (`*`, `?`, `[ab]`); () is all
    exclude  patterns of names of tables

    Raises PromptError when the source cannot be read, holds no such table, or is a catalog and
    `columns` are wanted; ConfigError for an
    unknown form, dialect, driver or a missing extra, ServerError when a database does not answer.
    """
    name = str(source)
    writer = get_form(form)
    if dialect is not None:
        check_dialect(dialect)
    if "://" not in name and name.lower().endswith(".jsonl"):
        if columns:
            raise PromptError(
                f"{name!r} is a catalog, whose tables are written already: ask for columns where "
                "its source is loaded"
            )
        catalog = Catalog.read(name)
        tables = [each for each in catalog if _is_wanted(each.name, include, exclude)]
        return Loaded(_make_catalog(tables, "the catalog"), ())
    reader = _reader_of(name)
    declared, notes = reader(name, Options(dialect, tuple(schemas), views, writer.is_compiled))
    resolved = resolve(declared, notes)
    tables = [
        table
        for each in resolved
        if _is_wanted(each.name, include, exclude)
        for table in _write(each, writer, columns)
    ]
    what = "the database" if reader is _database else repr(name)  # a URL is not repeated
    if not tables and notes:
        what += f" ({notes[0]})"
    return Loaded(_make_catalog(tables, what), tuple(notes))


def resolve(declared: Sequence[Declaration], notes: list[str]) -> list[Declaration]:
    """The same tables, whose foreign keys spell their targets as these are declared.

    A target is looked for as it is written, in the schema of the table, then whatever its case. A
    key that names no columns means the target's primary key. Of two tables with one name the first
    counts, which is added to `notes`.
    """
    tables: dict[str, Declaration] = {}
    for each in declared:
        if each.name in tables:
            notes.append(f"table {shorten(each.name)} is declared again: the first counts")
        tables.setdefault(each.name, each)
    folded: dict[str, list[str]] = {}
    for name in tables:
        folded.setdefault(name.casefold(), []).append(name)

    def find(owner: Declaration, key: ForeignKey) -> Declaration | None:
        names = [key.target]
        if not key.target_schema and owner.schema:
            names.insert(0, f"{owner.schema}.{key.target}")
        for name in names:
            if name in tables:
                return tables[name]
        for name in names:
            alike = folded.get(name.casefold(), [])
            if len(alike) == 1:
                return tables[alike[0]]
        return None

    def mend(owner: Declaration, key: ForeignKey) -> ForeignKey:
        target = find(owner, key)
        if target is None:
            return key
        return replace(
            key,
            target_schema=target.schema,
            target_table=target.table,
            target_columns=key.target_columns or target.primary_key,
        )

    return [
        replace(each, foreign_keys=tuple(mend(each, key) for key in each.foreign_keys))
        for each in tables.values()
    ]


def _write(declared: Declaration, form: Form, with_columns: bool) -> list[Table]:
    """The entries of a table: one, or one and those of its columns."""
    targets = tuple(key.target for key in declared.foreign_keys)
    if not with_columns:
        return [Table(declared.name, form.write(declared), targets)]
    head, columns = declared.take_apart()
    return [Table(head.name, form.write(head), targets)] + [
        Table(f"{head.name}.{each.name}", form.write_column(head, each), (head.name,))
        for each in columns
    ]


def _reader_of(source: str) -> Callable[[str, Options], Declared]:
    if "://" in source:
        return _database
    reader = READERS.get(Path(source).suffix.lower())
    if reader is None:
        raise PromptError(
            f"{source!r} ends like no source: give a URL or a file that ends with "
            f"{', '.join(READERS)} or .jsonl"
        )
    return reader


def _is_wanted(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    is_in = not include or any(fits(name, each) for each in include)
    return is_in and not any(fits(name, each) for each in exclude)


def _make_catalog(tables: list[Table], what: str) -> Catalog:
    if not tables:
        raise PromptError(
            f"{what} holds no table that is wanted: check the source and the patterns"
        )
    return Catalog(tables)
