# SPDX-License-Identifier: Apache-2.0
"""Each form writes what it says: SQLite reads ours, SQLAlchemy writes LangChain's."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from depcache.errors import ConfigError
from depcache.tables import Catalog, load
from depcache.tables.declaration import Column, Declaration, ForeignKey
from depcache.tables.forms import FORMS, Form, get_form
from tests.depcache.tables.shop import SQL, make_sqlite

TRACK = Declaration(
    "",
    "track",
    columns=(
        Column("id", "INTEGER", is_nullable=False, comment="number\nof the\u2028track"),
        Column("Order", "NVARCHAR(200)", comment="its place"),
        Column("anything"),
    ),
    primary_key=("id",),
    foreign_keys=(ForeignKey(("Order",), "", "album", ("id",)),),
    comment="what is sold",
)


def test_ddl() -> None:
    assert FORMS["ddl"].write(TRACK) == (
        "CREATE TABLE track (\n"
        "    id INTEGER NOT NULL,\n"
        '    "Order" NVARCHAR(200),\n'
        "    anything,\n"
        "    PRIMARY KEY (id),\n"
        '    FOREIGN KEY ("Order") REFERENCES album (id)\n'
        ")"
    )


def test_comments_stay_on_their_line() -> None:
    assert FORMS["ddl_comments"].write(TRACK) == (
        "-- what is sold\n"
        "CREATE TABLE track (\n"
        "    id INTEGER NOT NULL, -- number of the track\n"
        '    "Order" NVARCHAR(200), -- its place\n'
        "    anything,\n"
        "    PRIMARY KEY (id),\n"
        '    FOREIGN KEY ("Order") REFERENCES album (id)\n'
        ")"
    )


def test_llamaindex() -> None:
    assert FORMS["llamaindex"].write(TRACK) == (
        "Table 'track' has columns: id (INTEGER): 'number of the track', "
        "Order (NVARCHAR(200)): 'its place', anything (), with comment: (what is sold)  "
        "and foreign keys: ['Order'] -> album.['id']."
    )
    alone = Declaration("", "genre", columns=(Column("id", "INTEGER"),))
    assert FORMS["llamaindex"].write(alone) == "Table 'genre' has columns: id (INTEGER), ."


def test_a_column_beside_its_table_is_a_statement_that_names_it() -> None:
    assert {name: form.write_column(TRACK, TRACK.columns[1]) for name, form in FORMS.items()} == {
        "ddl": 'ALTER TABLE track ADD COLUMN "Order" NVARCHAR(200)',
        "ddl_comments": 'ALTER TABLE track ADD COLUMN "Order" NVARCHAR(200) -- its place',
        "langchain": 'ALTER TABLE track ADD COLUMN "Order" NVARCHAR(200)',
        "llamaindex": "Table 'track' has column: Order (NVARCHAR(200)): 'its place'.",
    }
    own = Form(added_column="{table}.{column}")
    assert own.write_column(TRACK, TRACK.columns[2]) == "track.anything"


CONSTRAINED = """
CREATE TABLE customer (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    email VARCHAR(30) DEFAULT 'none' NOT NULL UNIQUE,
    "Since" TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    discount NUMERIC(4, 2) DEFAULT (1 + 2) CHECK (discount < 10),
    invited_by INT REFERENCES customer (id) ON DELETE SET NULL,
    CONSTRAINT one_a_day UNIQUE ("Since", discount),
    CONSTRAINT not_oneself CHECK (invited_by <> id)
);
"""


def load_sqlite(folder: Path, sql: str, **options: Any) -> Catalog:
    pytest.importorskip("sqlalchemy", reason="needs the extra `tables`")
    return load(make_sqlite(folder / "shop.db", sql), **options).catalog


@pytest.mark.parametrize("schema", [SQL, CONSTRAINED])
def test_langchain_is_what_sqlalchemy_compiles(schema: str, tmp_path: Path) -> None:
    catalog = load_sqlite(tmp_path, schema, form="langchain")
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="needs the extra `tables`")
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    metadata = sqlalchemy.MetaData()
    metadata.reflect(engine)
    assert len(catalog) == len(metadata.tables)
    for name, table in metadata.tables.items():
        compiled = sqlalchemy.schema.CreateTable(table).compile(engine)
        assert catalog[name].text == str(compiled).strip(), name
    engine.dispose()


def test_langchain_leaves_out_columns_without_a_type(tmp_path: Path) -> None:
    sql = "CREATE TABLE t (a INTEGER DEFAULT 1, anything, b TEXT);"
    assert load_sqlite(tmp_path, sql, form="langchain")["t"].text == (
        "CREATE TABLE t (\n\ta INTEGER DEFAULT 1, \n\tb TEXT\n)"
    )
    # Columns apart are written by the templates.
    apart = load(tmp_path / "shop.db", form="langchain", columns=True).catalog
    assert [each.text for each in apart] == [
        "CREATE TABLE t (\n\ta INTEGER\n)",
        "ALTER TABLE t ADD COLUMN anything",
        "ALTER TABLE t ADD COLUMN b TEXT",
    ]


def test_llamaindex_has_types_in_the_words_of_sqlalchemy(tmp_path: Path) -> None:
    sql = "CREATE TABLE t (a VARCHAR(20), anything);"
    text = load_sqlite(tmp_path, sql, form="llamaindex")["t"].text
    assert text == "Table 't' has columns: a (VARCHAR(20)), anything (NULL), ."


def test_a_reference_to_no_table_is_written_all_the_same(tmp_path: Path) -> None:
    sql = "CREATE TABLE a (b INT DEFAULT 1 REFERENCES gone (b)); CREATE TABLE c (d INT DEFAULT 1);"
    catalog = load_sqlite(tmp_path, sql, form="langchain")
    assert "REFERENCES gone (b)" in catalog["a"].text and "DEFAULT" not in catalog["a"].text
    assert catalog["c"].text == "CREATE TABLE c (\n\td INTEGER DEFAULT 1\n)"


@pytest.mark.parametrize(
    "name", ['say "hi"', "two words", "a\nb", "a\u2028b", "</s>", "select", "ß", "1st"]
)
def test_any_name_is_quoted_so_that_sqlite_reads_it_back(name: str) -> None:
    declared = Declaration(
        "",
        name,
        columns=(Column(name, "TEXT", comment=f"{name} */ ); DROP"),),
        primary_key=(name,),
        foreign_keys=(ForeignKey((name,), "", name, (name,)),),
        comment=name,
    )
    for form in ("ddl", "ddl_comments", "langchain"):
        with sqlite3.connect(":memory:") as connection:
            connection.execute(FORMS[form].write(declared))
            assert connection.execute("SELECT name FROM sqlite_master").fetchone() == (name,)
            rows = connection.execute("SELECT name FROM pragma_table_info(?)", (name,)).fetchall()
            assert rows == [(name,)]


def test_a_form_of_ones_own() -> None:
    form = Form(table="{name}({columns})", column="{name}{comma}", comma=", ", newline="")
    assert get_form(form).write(TRACK) == 'track(id, "Order", anything)'


@pytest.mark.parametrize("form", [Form(table="{nam}"), Form(column="{"), Form(column="{0}")])
def test_a_slot_that_is_not_there_is_named(form: Form) -> None:
    with pytest.raises(ConfigError, match="no slot"):
        form.write(TRACK)
    with pytest.raises(ConfigError, match="no slot"):
        Form(added_column="{nam}").write_column(TRACK, TRACK.columns[0])


@pytest.mark.parametrize("name", ["xml", "", None, 3, []])
def test_what_is_no_form_lists_them(name) -> None:
    with pytest.raises(ConfigError, match="ddl, ddl_comments, langchain, llamaindex"):
        get_form(name)
