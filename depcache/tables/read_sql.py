# SPDX-License-Identifier: Apache-2.0
"""Read a schema from SQL: CREATE TABLE, ALTER TABLE, COMMENT ON, in any dialect.

ALTER TABLE is followed where it adds keys, or adds, drops or renames columns.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from depcache.errors import ConfigError, shorten
from depcache.tables.declaration import Column, Declaration, ForeignKey, qualify
from depcache.tables.extra import need
from depcache.tables.statements import split

# What a text shows -> the dialect that writes it. The first that fits is tried first.
HINTS = (
    (r"`|\bENGINE\s*=|\bAUTO_INCREMENT\b", "mysql"),
    (r"\bAUTOINCREMENT\b|\bWITHOUT\s+ROWID\b|\bPRAGMA\b", "sqlite"),
    (r"\bSERIAL\b|::|\bALTER\s+TABLE\s+ONLY\b|\bSET\s+search_path\b", "postgres"),
    (r"\[\w+\]|\bIDENTITY\s*\(|^\s*GO\s*$", "tsql"),
    (r"\bVARCHAR2\b|\bNUMBER\s*\(", "oracle"),
)
DIALECTS = ("sqlite", "postgres", "mysql", "tsql", "oracle", "snowflake", "bigquery", "duckdb")

# The words that may follow a column's type; what stands before them is the type as written.
_BEHIND_TYPE = (
    r"(?:NOT|NULL|PRIMARY|DEFAULT|UNIQUE|CHECK|REFERENCES|COLLATE|CONSTRAINT|AUTO_?INCREMENT|"
    r"COMMENT|GENERATED|ON|AS|IDENTITY|KEY|AFTER|FIRST|CHARACTER\s+SET|ENCODE|STORED|VIRTUAL)\b"
)
_WORD = rf"(?!{_BEHIND_TYPE})(?:[\w.]+|\[[A-Za-z]\w*\])"
_TYPE = re.compile(
    rf"\s*(?:{_WORD})(?:\s+{_WORD})*(?:\s*\([^()]*\))?(?:\s+{_WORD})*(?:\s*\[\d*\])*", re.IGNORECASE
)
_BRACKETS = re.compile(r"\s*([(,)])\s*")
_QUOTED = re.compile(r"\[([A-Za-z]\w*)\]")

# What can say nothing about tables is not parsed.
_SAYS_NOTHING = re.compile(
    r"INSERT\b|ALTER\b(?!(?s:.*)\b(?:KEY|ADD|DROP\s+(?!DEFAULT|NOT)|RENAME)\b)", re.IGNORECASE
)
# What says nothing here, and what sqlglot 30.30 cannot read. SQLAlchemy writes it for databases.
_UNREAD = re.compile(
    r"\bNULLS\s+(?:NOT\s+)?DISTINCT\b|(?<=\bIDENTITY)\s*\([^()]*\)|(?<=\bBIT)\s+VARYING\b"
    r"|(?<=\bINTERVAL)\s+\w+(?:\s*\(\d+\))?\s+TO\s+\w+(?:\s*\(\d+\))?|,\s*-\d+(?=\s*\))"
    r"|(?<=\bLONG)\s+RAW\b|\bNATIONAL\s+(?=(?:VAR)?CHAR)",
    re.IGNORECASE,
)
_VIEW = re.compile(r"CREATE\s[^(]{0,60}?\bVIEW\b", re.IGNORECASE)


def read_sql(
    text: str, *, dialect: str | None = None, views: bool = False
) -> tuple[list[Declaration], list[str]]:
    """The tables that SQL declares, in its order, and a note for each statement left out.

    dialect  a name of sqlglot's; None tries those that the text looks like, then common ones
    views    whether views count as tables, with the columns that they name

    Raises ConfigError for an unknown dialect and where sqlglot is not installed.
    """
    dialects = [check_dialect(dialect)] if dialect else guess_dialects(text)
    tables: dict[str, Declaration] = {}
    notes: list[str] = []
    changes: list[tuple[Any, str]] = []
    kinds = need("sqlglot").exp
    for start, statement in split(text):
        is_view = _VIEW.match(statement) is not None
        if _SAYS_NOTHING.match(statement) or (is_view and not views):
            continue
        tree = parse(statement, dialects)
        where = f"the statement at line {text.count(chr(10), 0, start) + 1}"
        if tree is None:
            notes.append(f"{where} cannot be read: {_begin(statement)}")
        elif isinstance(tree, kinds.Create):
            declared = declaration_of(tree, statement)
            if declared is None:
                notes.append(f"{where} declares no columns: {_begin(statement)}")
            elif declared.name in tables:
                notes.append(f"table {shorten(declared.name)} is declared again: the first counts")
            else:
                tables[declared.name] = declared
        else:
            changes.append((tree, statement))
    for tree, statement in changes:
        _apply(tree, statement, tables, notes)
    return list(tables.values()), notes


def check_dialect(name: str) -> str:
    """Returns the name of a dialect; ConfigError, with the names, where it is none."""
    names = sorted(each for each in need("sqlglot").Dialects if each.value)
    if name not in [each.value for each in names]:
        raise ConfigError(
            f"{shorten(name)} is no dialect of SQL: use {', '.join(each.value for each in names)}"
        )
    return name


def guess_dialects(text: str) -> list[str]:
    """Dialects in the order in which they are tried on each statement."""
    hinted = [
        dialect
        for pattern, dialect in HINTS
        if re.search(pattern, text, re.IGNORECASE | re.MULTILINE)
    ]
    return list(dict.fromkeys([*hinted, *DIALECTS]))


def parse(statement: str, dialects: Sequence[str]) -> Any:
    """The syntax tree by the first dialect that can read a statement; None where none can."""
    tree = _parse(statement, dialects)
    if tree is None and (readable := blank_unread(statement)) != statement:
        tree = _parse(readable, dialects)
    return tree


def blank_unread(statement: str) -> str:
    """The statement with blanks for what says nothing of its tables, and sqlglot may not read.

    Places in it stay what they are. In strings it may say something.
    """
    return _UNREAD.sub(lambda found: " " * len(found[0]), statement)


def _parse(statement: str, dialects: Sequence[str]) -> Any:
    sqlglot = need("sqlglot")
    with _quiet():
        for dialect in dialects:
            try:
                tree = sqlglot.parse_one(statement, read=dialect)
            # The text is anyone's: besides its own errors sqlglot raises whatever its parser
            # stumbles over, and RecursionError.
            except Exception:
                continue
            # A Command is a statement that was not understood.
            if not isinstance(tree, sqlglot.exp.Command):
                return tree
    return None


def declaration_of(tree: Any, statement: str) -> Declaration | None:
    """The table in the tree of a CREATE TABLE or CREATE VIEW; None where nothing is declared."""
    kinds = need("sqlglot").exp
    schema = tree.this
    if tree.args.get("kind") == "VIEW":
        named = tree.expression.named_selects if isinstance(tree.expression, kinds.Query) else ()
        seen = tuple(Column(name) for name in named if name != "*")
        table = schema.this if isinstance(schema, kinds.Schema) else schema
        return Declaration(*_name_of(table), columns=seen)
    if not isinstance(schema, kinds.Schema):
        return None
    foreign_keys: list[ForeignKey] = []
    primary_key: list[str] = []
    primary_key_name = ""
    columns: list[Column] = []
    for item in schema.expressions:
        if isinstance(item, kinds.ColumnDef):
            columns.append(_column(item, statement))
            primary_key += [item.name] if item.find(kinds.PrimaryKeyColumnConstraint) else []
            foreign_keys += _references(item)
            continue
        name = item.name if isinstance(item, kinds.Constraint) else ""
        if found := _primary_key(item):
            primary_key, primary_key_name = list(found), name
        foreign_keys += _foreign_keys(item, name)
    schema_name, table_name = _name_of(schema.this)
    if not columns or not table_name.strip():
        return None
    comment = tree.find(kinds.SchemaCommentProperty)
    return Declaration(
        schema_name,
        table_name,
        columns=tuple(columns),
        primary_key=tuple(primary_key),
        foreign_keys=tuple(foreign_keys),
        comment=comment.name if comment else "",
        primary_key_name=primary_key_name,
    )


def _column(item: Any, statement: str) -> Column:
    kinds = need("sqlglot").exp
    comment = item.find(kinds.CommentColumnConstraint)
    not_null = item.find(kinds.NotNullColumnConstraint)
    is_nullable = not_null is None or bool(not_null.args.get("allow_null"))
    said = comment.name if comment else " ".join(item.comments or ())
    return Column(item.name, _type_of(item, statement), is_nullable, said.strip())


def _type_of(item: Any, statement: str) -> str:
    """The type as written: sqlglot's own spelling would say INT for INTEGER."""
    if item.kind is None:
        return ""
    end = item.this.meta.get("end")
    found = _TYPE.match(statement, end + 1) if isinstance(end, int) else None
    if found is None:
        return item.kind.sql()
    text = " ".join(found[0].split())
    text = _QUOTED.sub(r"\1", text)
    return _BRACKETS.sub(lambda m: {"(": "(", ",": ", ", ")": ") "}[m[1]], text).strip()


def _primary_key(item: Any) -> tuple[str, ...]:
    kinds = need("sqlglot").exp
    key = item if isinstance(item, kinds.PrimaryKey) else item.find(kinds.PrimaryKey)
    return _names_of(key.expressions) if key is not None else ()


def _foreign_keys(item: Any, name: str = "") -> Iterator[ForeignKey]:
    for key in item.find_all(need("sqlglot").exp.ForeignKey):
        target = _target(key.args.get("reference"))
        if target is not None:
            yield ForeignKey(_names_of(key.expressions), *target, name)


def _references(column: Any) -> Iterator[ForeignKey]:
    """The keys that the definition of a column declares itself."""
    for constraint in column.find_all(need("sqlglot").exp.ColumnConstraint):
        target = _target(constraint.args.get("kind"))
        if target is not None:
            yield ForeignKey((column.name,), *target, constraint.name)


def _target(reference: Any) -> tuple[str, str, tuple[str, ...]] | None:
    """Schema, table and columns that a REFERENCES names; None of anything else."""
    kinds = need("sqlglot").exp
    if not isinstance(reference, kinds.Reference):
        return None
    table, columns = reference.this, ()
    if isinstance(table, kinds.Schema):
        table, columns = table.this, _names_of(table.expressions)
    schema, name = _name_of(table)
    return (schema, name, columns) if name.strip() else None


def _names_of(expressions: Sequence[Any]) -> tuple[str, ...]:
    """Names of columns, which may stand in an expression that says their order."""
    found = (each.find(need("sqlglot").exp.Identifier) for each in expressions)
    return tuple(each.name for each in found if each is not None)


def _name_of(table: Any) -> tuple[str, str]:
    """Schema and table; "" and "" of what is no name of a table."""
    if not isinstance(table, need("sqlglot").exp.Table):
        return "", ""
    return qualify(table.catalog, table.db), table.name


def _apply(tree: Any, statement: str, tables: dict[str, Declaration], notes: list[str]) -> None:
    """What ALTER TABLE and COMMENT ON change in the tables that are there."""
    kinds = need("sqlglot").exp
    if isinstance(tree, kinds.Comment):
        _comment(tree, tables)
        return
    if not isinstance(tree, kinds.Alter):
        return
    name = qualify(*_name_of(tree.this))
    for action in tree.args.get("actions") or ():
        change = _change_of(action, statement)
        if change is None:
            continue
        if name not in tables:
            notes.append(f"ALTER TABLE of {shorten(name)}, which is not declared: left out")
            return
        tables[name] = change(tables[name])
        if isinstance(action, kinds.RenameColumn):
            old, new = action.this.name, action.args["to"].name
            for other, declared in tables.items():
                tables[other] = _with_targets_renamed(declared, name, old, new)


def _change_of(action: Any, statement: str) -> Callable[[Declaration], Declaration] | None:
    """What one action of an ALTER TABLE makes of the table; None where it says nothing here."""
    kinds = need("sqlglot").exp
    if isinstance(action, kinds.RenameColumn):
        return partial(_with_column_renamed, old=action.this.name, new=action.args["to"].name)
    if isinstance(action, kinds.Drop):
        is_column = action.args.get("kind") == "COLUMN"
        gone = {each.name for each in action.args.get("tables") or ()}
        return partial(_without_columns, names=gone) if is_column else None
    items = action.expressions if isinstance(action, kinds.Schema) else [action]
    added = [item for item in items if isinstance(item, kinds.ColumnDef)]
    constraint = action.find(kinds.Constraint)
    constraint_name = constraint.name if constraint is not None else ""
    keys = [*_foreign_keys(action, constraint_name)]
    for item in added:
        keys += _references(item)
    primary_key = _primary_key(action)
    primary_key = primary_key or tuple(
        item.name for item in added if item.find(kinds.PrimaryKeyColumnConstraint)
    )
    columns = [_column(item, statement) for item in added]
    if not (columns or keys or primary_key):
        return None

    def change(table: Declaration) -> Declaration:
        known = {column.name for column in table.columns}
        fresh = [column for column in columns if column.name not in known]
        return replace(
            table,
            columns=(*table.columns, *fresh),
            foreign_keys=(*table.foreign_keys, *keys),
            primary_key=primary_key or table.primary_key,
            primary_key_name=constraint_name if primary_key else table.primary_key_name,
        )

    return change


def _without_columns(table: Declaration, names: set[str]) -> Declaration:
    """The table without these columns, and without the keys that have one of them."""
    has_key = names.isdisjoint(table.primary_key)
    return replace(
        table,
        columns=tuple(each for each in table.columns if each.name not in names),
        primary_key=table.primary_key if has_key else (),
        primary_key_name=table.primary_key_name if has_key else "",
        foreign_keys=tuple(key for key in table.foreign_keys if names.isdisjoint(key.columns)),
    )


def _with_column_renamed(table: Declaration, old: str, new: str) -> Declaration:
    return replace(
        table,
        columns=tuple(
            replace(each, name=new) if each.name == old else each for each in table.columns
        ),
        primary_key=_renamed(table.primary_key, old, new),
        foreign_keys=tuple(
            replace(key, columns=_renamed(key.columns, old, new)) for key in table.foreign_keys
        ),
    )


def _with_targets_renamed(table: Declaration, target: str, old: str, new: str) -> Declaration:
    """The table, whose keys that refer to column `old` of `target` refer to `new`."""
    keys = tuple(
        replace(key, target_columns=_renamed(key.target_columns, old, new))
        if key.target == target
        else key
        for key in table.foreign_keys
    )
    return replace(table, foreign_keys=keys)


def _renamed(names: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if name == old else name for name in names)


def _comment(tree: Any, tables: dict[str, Declaration]) -> None:
    """A COMMENT ON of a table or a column that is there; of anything else nothing."""
    said = tree.args["expression"].name if tree.args.get("expression") else ""
    target = tree.this
    if tree.args.get("kind") == "COLUMN":
        parts = [target.text("db"), target.text("table")]
        name = qualify(parts[0], parts[1])
        if name in tables:
            columns = tuple(
                replace(each, comment=said) if each.name == target.name else each
                for each in tables[name].columns
            )
            tables[name] = replace(tables[name], columns=columns)
    elif tree.args.get("kind") == "TABLE" and (name := qualify(*_name_of(target))) in tables:
        tables[name] = replace(tables[name], comment=said)


def _begin(statement: str) -> str:
    return shorten(" ".join(statement[:200].split()), 60)


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside, sqlglot does not log what it does not understand: the caller says it once."""
    logger = logging.getLogger("sqlglot")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
