# SPDX-License-Identifier: Apache-2.0
"""Read the schema of a running database or an SQLite file, through SQLAlchemy's Inspector.

Not `MetaData.reflect`: there one foreign key to a table that cannot be read fails the whole schema.
A URL may hold a password, so no message here holds any part of a URL but its kind of database and
its host.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from depcache.errors import ConfigError, PromptError, ServerError, shorten
from depcache.tables.declaration import Column, Declaration, ForeignKey, qualify
from depcache.tables.extra import need
from depcache.text_file import open_bytes, reading

_SQLITE_BEGINS = b"SQLite format 3\0"


def read_sqlite(
    path: Path, *, views: bool = False, is_compiled: bool = False
) -> tuple[list[Declaration], list[str]]:
    """The tables of an SQLite file, which is opened for reading only; see `read_database`.

    Raises PromptError when it cannot be read or is none.
    """
    with reading(path), open_bytes(path) as file:
        begin = file.read(len(_SQLITE_BEGINS))
    if begin != _SQLITE_BEGINS:
        raise PromptError(f"{str(path)!r} is no SQLite database: check the path")
    url = f"sqlite:///file:{quote(str(path.absolute()))}?mode=ro&uri=true"
    try:
        return read_database(url, views=views, is_compiled=is_compiled)
    except ServerError:
        raise PromptError(
            f"{str(path)!r} cannot be read as an SQLite database: check that it is whole, and no "
            "program has it locked"
        ) from None


def read_database(
    url: str, *, schemas: Sequence[str] = (), views: bool = False, is_compiled: bool = False
) -> tuple[list[Declaration], list[str]]:
    """The tables of a database, names ascending, and a note for each table left out.

    url          SQLAlchemy's, `dialect+driver://user:password@host/database`
    schemas      whose tables, which are then called `schema.table`; () is the default schema
    views        whether views count as tables; they have no references
    is_compiled  whether each table has its `compiled` too, which reads it a second time

    Raises ConfigError for what is no URL or needs a driver, ServerError when the database cannot be
    reached or refuses. No error names a user or a password.
    """
    sqlalchemy = need("sqlalchemy")
    try:
        place = sqlalchemy.engine.make_url(url)
        where = f"{place.get_backend_name()} database" + (f" at {place.host}" if place.host else "")
        engine = sqlalchemy.create_engine(place)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the database needs the Python module {shorten(error.name)}: install its driver"
        ) from None
    except Exception:
        # The message may hold the URL.
        raise ConfigError(
            "this is no URL of a database that SQLAlchemy knows: write "
            "dialect://user:password@host/database"
        ) from None
    tables: list[Declaration] = []
    notes: list[str] = []
    try:
        with engine.connect() as connection, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a type that SQLAlchemy does not know
            inspector = sqlalchemy.inspect(connection)
            for schema in schemas or [None]:
                for table, is_view in _names(inspector, schema, views):
                    try:
                        tables.append(_declare(inspector, schema, table, is_view))
                    except sqlalchemy.exc.SQLAlchemyError as error:
                        notes.append(f"table {shorten(table)} cannot be read ({_kind(error)})")
            if is_compiled:
                tables = _compile(inspector, tables)
    # Drivers raise errors of their own beside SQLAlchemy's, and their messages hold what was sent.
    except Exception as error:
        raise ServerError(
            f"the {where} cannot be read ({_kind(error)}): check address, user and password"
        ) from None
    finally:
        engine.dispose()
    return tables, notes


def _names(inspector: Any, schema: str | None, views: bool) -> Iterable[tuple[str, bool]]:
    yield from ((name, False) for name in sorted(inspector.get_table_names(schema=schema)))
    if views:
        yield from ((name, True) for name in sorted(inspector.get_view_names(schema=schema)))


def _declare(inspector: Any, schema: str | None, table: str, is_view: bool) -> Declaration:
    columns = inspector.get_columns(table, schema=schema)
    key: dict[str, Any] = {} if is_view else inspector.get_pk_constraint(table, schema=schema) or {}
    foreign = [] if is_view else inspector.get_foreign_keys(table, schema=schema)
    try:
        comment = inspector.get_table_comment(table, schema=schema).get("text")
    except NotImplementedError:  # by a dialect without comments
        comment = None
    return Declaration(
        schema or "",
        table,
        columns=tuple(
            Column(
                each["name"],
                _type(each["type"], inspector.dialect),
                bool(each.get("nullable", True)),
                each.get("comment") or "",
                str(each["type"]),
            )
            for each in columns
        ),
        primary_key=tuple(key.get("constrained_columns") or ()),
        primary_key_name=key.get("name") or "",
        foreign_keys=tuple(
            ForeignKey(
                tuple(each["constrained_columns"]),
                each.get("referred_schema") or "",
                each["referred_table"],
                tuple(each.get("referred_columns") or ()),
                each.get("name") or "",
            )
            for each in foreign
        ),
        comment=comment or "",
    )


def _compile(inspector: Any, tables: Sequence[Declaration]) -> list[Declaration]:
    """The same tables with what LangChain's `SQLDatabase` writes of each, where that is anything.

    Not where one refers to a table that cannot be read, as LangChain does not read those either.
    """
    sqlalchemy = need("sqlalchemy")
    metadata = sqlalchemy.MetaData()

    def write(name: str, schema: str) -> str:
        try:
            table = metadata.tables.get(qualify(schema, name))
            if table is None:  # else another one refers to it
                table = sqlalchemy.Table(
                    name, metadata, schema=schema or None, autoload_with=inspector
                )
            statement = sqlalchemy.schema.CreateTable(table)
            # LangChain leaves out what has no type, since it cannot be compiled.
            statement.columns = [
                column
                for column in statement.columns
                if not isinstance(column.element.type, sqlalchemy.types.NullType)
            ]
            return str(statement.compile(dialect=inspector.dialect)).strip()
        except sqlalchemy.exc.SQLAlchemyError:
            return ""

    return [replace(each, compiled=write(each.table, each.schema)) for each in tables]


def _type(kind: Any, dialect: Any) -> str:
    """A type as the database writes it; "" where it has none."""
    if isinstance(kind, need("sqlalchemy").types.NullType):
        return ""
    try:
        return kind.compile(dialect=dialect)
    except need("sqlalchemy").exc.CompileError:
        return str(kind)


def _kind(error: BaseException) -> str:
    """What failed, without the words of the driver."""
    inner = getattr(error, "orig", None) or error
    return type(inner).__name__
