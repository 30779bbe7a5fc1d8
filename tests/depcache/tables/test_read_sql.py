# SPDX-License-Identifier: Apache-2.0
"""Schemas as the usual programs dump them."""

from __future__ import annotations

import logging
import random
import re

import pytest

from depcache.errors import ConfigError
from depcache.tables.declaration import Column, ForeignKey
from tests.depcache.tables.shop import SQL

pytest.importorskip("sqlglot", reason="needs the extra `tables`")

from depcache.tables.read_sql import guess_dialects, read_sql

PG_DUMP = """
SET client_encoding = 'UTF8';
CREATE FUNCTION public.f() RETURNS void LANGUAGE sql AS $$ CREATE TABLE inner_one (a int); $$;
CREATE TABLE public.artist (
    id bigint DEFAULT nextval('public.artist_id_seq'::regclass) NOT NULL,
    name character varying(120),
    tags text[]
);
ALTER TABLE public.artist OWNER TO shop;
COMMENT ON TABLE public.artist IS 'who plays; sometimes';
COMMENT ON COLUMN public.artist.name IS 'as on the cover';
CREATE TABLE public.album (id bigint NOT NULL, artist_id bigint, made timestamp with time zone);
COPY public.artist (id, name) FROM stdin;
1	CREATE TABLE no_table (a int);
\\.
ALTER TABLE ONLY public.artist ADD CONSTRAINT artist_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.album
    ADD CONSTRAINT album_artist_fk FOREIGN KEY (artist_id) REFERENCES public.artist(id);
"""

MYSQL = """
/*!40101 SET NAMES utf8 */;
CREATE TABLE `artist` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `name` varchar(120) COLLATE utf8_bin DEFAULT NULL COMMENT 'as on; the cover',
  `kind` enum('solo','group') DEFAULT 'solo',
  PRIMARY KEY (`id`),
  KEY `name` (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8 COMMENT='who plays';
INSERT INTO `artist` VALUES (1,'CREATE TABLE x (a int);','solo');
CREATE TABLE `album` (
  `id` int unsigned NOT NULL,
  `artist_id` int(11) DEFAULT NULL,
  UNIQUE KEY `both` (`id`,`artist_id`),
  CONSTRAINT `fk` FOREIGN KEY (`artist_id`) REFERENCES `artist` (`id`) ON DELETE CASCADE
) ENGINE=InnoDB;
"""

TSQL = """
CREATE TABLE [dbo].[Artist]([Id] [int] IDENTITY(1,1) NOT NULL, [Name] [nvarchar](120) NULL)
GO
CREATE TABLE [dbo].[Album]([Id] [int] NOT NULL, [ArtistId] [int] NOT NULL)
GO
ALTER TABLE [dbo].[Album]  WITH CHECK ADD  CONSTRAINT [FK] FOREIGN KEY([ArtistId])
REFERENCES [dbo].[Artist] ([Id])
GO
"""


def test_a_dump_of_postgres() -> None:
    (artist, album), notes = read_sql(PG_DUMP)
    assert artist.name == "public.artist" and artist.comment == "who plays; sometimes"
    assert artist.columns == (
        Column("id", "bigint", is_nullable=False),
        Column("name", "character varying(120)", comment="as on the cover"),
        Column("tags", "text[]"),
    )
    assert (artist.primary_key, artist.primary_key_name) == (("id",), "artist_pkey")
    assert album.columns[2].type == "timestamp with time zone"
    key = ForeignKey(("artist_id",), "public", "artist", ("id",), "album_artist_fk")
    assert album.foreign_keys == (key,)
    assert notes == []


def test_a_dump_of_mysql() -> None:
    (artist, album), notes = read_sql(MYSQL)
    assert [(c.name, c.type, c.comment) for c in artist.columns] == [
        ("id", "int(11)", ""),
        ("name", "varchar(120)", "as on; the cover"),
        ("kind", "enum('solo', 'group')", ""),
    ]
    assert artist.comment == "who plays" and artist.primary_key == ("id",)
    assert [c.type for c in album.columns] == ["int unsigned", "int(11)"]
    assert [key.target for key in album.foreign_keys] == ["artist"]
    assert notes == []


def test_a_script_of_sql_server() -> None:
    (artist, album), notes = read_sql(TSQL)
    assert (artist.name, album.name) == ("dbo.Artist", "dbo.Album")
    assert [key.target for key in album.foreign_keys] == ["dbo.Artist"]
    assert [c.is_nullable for c in artist.columns] == [False, True]
    assert notes == []


def test_references_of_columns_and_labels_in_comments() -> None:
    tables, _ = read_sql(
        "CREATE TABLE a (id INTEGER PRIMARY KEY, -- its number\n b TEXT REFERENCES b, -- a 'b'\n"
        "c INT REFERENCES x.y (z));\nCREATE TABLE b (id INT)"  # no semicolon
    )
    a, b = tables
    assert [c.comment for c in a.columns] == ["its number", "a 'b'", ""]
    assert a.primary_key == ("id",)
    assert [(k.target, k.target_columns) for k in a.foreign_keys] == [("b", ()), ("x.y", ("z",))]
    assert b.name == "b"


def test_what_cannot_be_read_is_a_note_and_the_rest_is_read() -> None:
    tables, notes = read_sql(
        "CREATE TABLE good (a INT);\nCREATE TABLE bad (a INT;\nCREATE TABLE last (a INT);\n"
        "CREATE TABLE good (b INT);\nALTER TABLE gone ADD FOREIGN KEY (a) REFERENCES good (a);"
    )
    assert [table.name for table in tables] == ["good", "last"]
    assert [note.split(":")[0] for note in notes] == [
        "the statement at line 2 cannot be read",
        "table 'good' is declared again",
        "ALTER TABLE of 'gone', which is not declared",
    ]


@pytest.mark.parametrize("dialect", [None, "postgres"])
def test_what_sqlalchemy_writes_for_postgres_and_sqlglot_does_not_know(dialect: str | None) -> None:
    [table], notes = read_sql(
        "CREATE TABLE a (b BIGINT GENERATED ALWAYS AS IDENTITY (INCREMENT BY 1 START WITH 1), "
        "c VARCHAR(20) DEFAULT 'none', CONSTRAINT k UNIQUE NULLS DISTINCT (b, c), "
        "FOREIGN KEY(c) REFERENCES d (e))",
        dialect=dialect,
    )
    assert notes == []
    assert [(each.name, each.type) for each in table.columns] == [
        ("b", "BIGINT"),
        ("c", "VARCHAR(20)"),
    ]
    assert table.foreign_keys == (ForeignKey(("c",), "", "d", ("e",)),)


@pytest.mark.parametrize(
    "kind",
    [
        "BIT VARYING(5)",
        "NATIONAL CHAR(9)",
        "INTERVAL day to second(2)",
        "NUMERIC(10, -2)",
        "LONG RAW",
        "VARCHAR(3)",
    ],
)
def test_a_type_that_sqlglot_does_not_know_is_told_as_it_is_written(kind: str) -> None:
    [table], notes = read_sql(f"CREATE TABLE a (b {kind} NOT NULL, c INT REFERENCES d)")
    assert notes == []
    assert table.columns[0] == Column("b", kind, is_nullable=False)
    assert table.foreign_keys == (ForeignKey(("c",), "", "d"),)


@pytest.mark.parametrize(
    "column",
    ["c BIGINT GENERATED ALWAYS AS ((b * 2)) VIRTUAL", "c INT REFERENCES (b)", "FOREIGN KEY (b)"],
)
def test_what_refers_to_no_table_is_no_reference(column: str) -> None:
    [table], _ = read_sql(f"CREATE TABLE a (b INT, {column})")
    assert table.foreign_keys == ()


def test_no_statement_raises_whatever_word_is_wrong_in_it() -> None:
    texts = (SQL, PG_DUMP, MYSQL, TSQL, MIGRATIONS)
    dumps = [re.findall(r"'[^']*'|\w+|\s+|.", text) for text in texts]
    words = [word for dump in dumps for word in dump if not word.isspace()]
    rng = random.Random(5)
    for _ in range(600):
        dump = list(rng.choice(dumps))
        for _ in range(3):
            place = rng.randrange(len(dump))
            dump[place : place + rng.randrange(2)] = [rng.choice(words)] * rng.randrange(2)
        read_sql("".join(dump))


def test_a_named_dialect_is_the_only_one() -> None:
    sql = "CREATE TABLE `a` (`b` INT) ENGINE=InnoDB;"
    assert len(read_sql(sql, dialect="mysql")[0]) == 1
    assert guess_dialects(sql)[0] == "mysql"
    assert guess_dialects("CREATE TABLE a (b VARCHAR2(3))")[0] == "oracle"
    for wrong in ("latin", "MySQL ", "sqlite; --"):
        with pytest.raises(ConfigError, match=r"no dialect of SQL: use .*sqlite"):
            read_sql(sql, dialect=wrong)


@pytest.mark.parametrize("text", ["CREATE TABLE a (" * 500, "'" * 9999, "[" * 9999, "/*" * 9999])
def test_what_never_ends_is_read_to_its_end(text: str) -> None:
    assert read_sql(text)[0] == []


def test_nothing_of_sqlglot_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        read_sql("ALTER TABLE a FROB b; CREATE TABLE a (b INT) FROB; CREATE TABLE b (a INT);")
    assert caplog.text == ""
    assert not logging.getLogger("sqlglot").disabled


MIGRATIONS = """
CREATE TABLE artist (id INTEGER PRIMARY KEY, label TEXT, old TEXT);
CREATE TABLE album (id INTEGER PRIMARY KEY, artist INTEGER REFERENCES artist(id));
CREATE TABLE "order" (id INTEGER, old INTEGER REFERENCES album(id), PRIMARY KEY (id, old));
ALTER TABLE artist ADD COLUMN born NUMERIC(10,2) NOT NULL DEFAULT 0;
ALTER TABLE artist ADD COLUMN IF NOT EXISTS label TEXT;
ALTER TABLE artist ADD album INTEGER CONSTRAINT newest REFERENCES album(id);
ALTER TABLE artist DROP COLUMN old;
ALTER TABLE artist RENAME COLUMN id TO artist_id;
ALTER TABLE "order" DROP COLUMN IF EXISTS old CASCADE;
ALTER TABLE artist ALTER COLUMN label SET DEFAULT 'x';
ALTER TABLE nobody ADD COLUMN a INTEGER;
"""


def test_migrations_add_drop_and_rename_columns() -> None:
    tables, notes = read_sql(MIGRATIONS)
    artist, album, order = tables
    assert artist.columns == (
        Column("artist_id", "INTEGER"),
        Column("label", "TEXT"),
        Column("born", "NUMERIC(10, 2)", is_nullable=False),
        Column("album", "INTEGER"),
    )
    assert artist.primary_key == ("artist_id",)
    assert artist.foreign_keys == (ForeignKey(("album",), "", "album", ("id",), "newest"),)
    assert album.foreign_keys == (ForeignKey(("artist",), "", "artist", ("artist_id",)),)
    assert [column.name for column in order.columns] == ["id"]
    assert order.primary_key == () and order.foreign_keys == ()
    assert notes == ["ALTER TABLE of 'nobody', which is not declared: left out"]


@pytest.mark.parametrize(
    ("dialect", "statement", "types"),
    [
        ("mysql", "ADD COLUMN `b` int unsigned COMMENT 'x', ADD COLUMN c text AFTER a", "int text"),
        ("tsql", "ADD b INT, c VARCHAR(3)", "INT VARCHAR(3)"),
        ("oracle", "ADD (b NUMBER(3), c VARCHAR2(4))", "NUMBER(3) VARCHAR2(4)"),
        ("postgres", "ADD COLUMN b text, ADD c text[]", "text text[]"),
    ],
)
def test_columns_are_added_as_each_dialect_says_it(
    dialect: str, statement: str, types: str
) -> None:
    text = f"CREATE TABLE t (a int);\nALTER TABLE t {statement};"
    (table,), notes = read_sql(text, dialect=dialect)
    assert not notes
    assert [column.name for column in table.columns] == ["a", "b", "c"]
    found = [column.type.removesuffix(" unsigned") for column in table.columns[1:]]
    assert found == types.split()
