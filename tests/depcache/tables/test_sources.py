# SPDX-License-Identifier: Apache-2.0
"""One schema is the same catalog whoever reads it; a source that is wrong is one sentence."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from depcache.errors import DepCacheError, PromptError
from depcache.tables import Catalog, Table, load
from tests.depcache.tables.shop import REFERENCES, make_json, make_sql, make_sqlite

pytest.importorskip("sqlglot", reason="needs the extra `tables`")
pytest.importorskip("sqlalchemy", reason="needs the extra `tables`")


@pytest.fixture
def loaded(tmp_path: Path) -> dict[str, Catalog]:
    """The shop by each reader."""
    sqlite = make_sqlite(tmp_path / "shop.sqlite")
    sources = {
        "sql": make_sql(tmp_path / "shop.sql"),
        "sqlite": sqlite,
        "url": f"sqlite:///{sqlite}",
        "json": make_json(tmp_path / "tables.json"),
    }
    return {name: load(source).catalog for name, source in sources.items()}


def test_every_reader_finds_the_same_tables_and_references(loaded: dict[str, Catalog]) -> None:
    for name, catalog in loaded.items():
        assert {table.name: table.references for table in catalog} == REFERENCES, name


def test_a_table_is_written_alike_whoever_read_it(loaded: dict[str, Catalog]) -> None:
    assert loaded["sql"].digest == loaded["sqlite"].digest == loaded["url"].digest
    # A tables.json knows neither NOT NULL nor the width of a type.
    for table in loaded["json"]:
        names = [line.split()[0] for line in table.text.splitlines()]
        assert names == [line.split()[0] for line in loaded["sql"][table.name].text.splitlines()]


def test_a_catalog_is_a_source(loaded: dict[str, Catalog], tmp_path: Path) -> None:
    path = tmp_path / "tables.jsonl"
    loaded["sql"].write(path)
    assert load(path).catalog.digest == loaded["sql"].digest
    assert load(path, include=["ALB*"]).catalog.names == ("album",)


def test_names_choose_tables(tmp_path: Path) -> None:
    source = make_sql(tmp_path / "shop.sql")
    found = load(source, include=["*o*"], exclude=["*_*", "Invoice"]).catalog
    assert found.names == ("employee", "customer")
    assert found.references.unknown == ()
    assert load(source, include=["album"]).catalog.references.unknown == (("album", "artist"),)
    with pytest.raises(PromptError, match="no table that is wanted"):
        load(source, include=["none"])


def test_tables_of_one_name_in_two_schemas_are_two_or_it_is_said(tmp_path: Path) -> None:
    source = tmp_path / "two.sql"
    orders = "CREATE TABLE {}orders (id INT PRIMARY KEY, {} INT REFERENCES {}{});"
    shop = f"CREATE TABLE shop.buyers (id INT);{orders.format('shop.', 'buyer', 'shop.', 'buyers')}"
    farm = f"CREATE TABLE farm.hens (id INT);{orders.format('farm.', 'hen', '', 'hens')}"
    source.write_text(shop + farm)
    catalog = load(source).catalog
    assert catalog["shop.orders"].references == ("shop.buyers",)
    # A target without a schema is one of the table's own.
    assert catalog["farm.orders"].references == ("farm.hens",)
    with pytest.raises(PromptError, match="'orders' is no table of the catalog: it has"):
        catalog.find("orders")

    source.write_text((shop + farm).replace("shop.", "").replace("farm.", ""))
    loaded = load(source)
    assert loaded.catalog["orders"].references == ("buyers",)
    [note] = loaded.notes
    assert "table 'orders' is declared again" in note

    both = load(make_json(tmp_path / "tables.json", "one", "two")).catalog
    assert both["one.album"].references == ("one.artist",)
    assert both["two.album"].references == ("two.artist",)
    with pytest.raises(PromptError, match=r"two tables 'album': give each a name of its own"):
        Catalog([Table("album", text) for text in ("a", "b")])


def test_views_are_listed_when_they_are_asked_for(tmp_path: Path) -> None:
    for source in (make_sqlite(tmp_path / "shop.db"), make_sql(tmp_path / "shop.sql")):
        assert "best_seller" not in load(source).catalog
        assert load(source, views=True).catalog["best_seller"].references == ()


@pytest.mark.parametrize("name", ['say "hi"', "two words", "a\nb", "a\u2028b", "</s>", "Straße"])
def test_odd_names_come_through_every_reader(name: str, tmp_path: Path) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    sql = (
        f"CREATE TABLE {quoted} ({quoted} INTEGER PRIMARY KEY);"
        f"CREATE TABLE other (id INTEGER REFERENCES {quoted} ({quoted}));"
    )
    (tmp_path / "odd.sql").write_text(sql, encoding="utf-8")
    with sqlite3.connect(tmp_path / "odd.db") as connection:
        connection.executescript(sql)
    for source in ("odd.sql", "odd.db"):
        catalog = load(tmp_path / source).catalog
        assert catalog["other"].references == (name,)
        catalog.write(tmp_path / "odd.jsonl")
        assert list(Catalog.read(tmp_path / "odd.jsonl")) == list(catalog)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.sql", b"", "no table"),
        ("a.sql", b"SELECT 1;", "no table"),
        ("a.sql", b"CREATE TABLE a (", "cannot be read"),
        ("a.sql", b"CREATE TABLE a AS SELECT 1;", "declares no columns"),
        ("a.sql", b"\xff\xfe", "UTF-8"),
        ("a.db", b"", "no SQLite database"),
        ("a.db", b"SQLite format 2", "no SQLite database"),
        ("a.db", b"SQLite format 3\0" + b"?" * 2000, "check that it is whole"),
        ("a.json", b"", "no JSON"),
        ("a.json", b"3", "Spider or BIRD"),
        ("a.json", b"[]", "no table"),
        ("a.json", b"[3]", "Spider or BIRD"),
        ("a.json", b"{}", "table_names_original"),
        ("a.json", b"[" * 100_000, "no JSON"),
        ("a.jsonl", b"{}", "line 1"),
        ("a.csv", b"a,b", "ends like no source"),
        ("a", b"", "ends like no source"),
    ],
)
def test_a_source_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DepCacheError) as caught:
        load(tmp_path / name)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500 + len(str(tmp_path))


@pytest.mark.parametrize("name", ["a.sql", "a.db", "a.json", "a.jsonl"])
def test_a_source_that_is_not_there_is_one_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(PromptError, match="cannot read"):
        load(tmp_path / name)
    assert list(tmp_path.iterdir()) == []  # SQLite would have made one


def test_columns_are_entries_that_refer_to_their_table(tmp_path: Path) -> None:
    catalog = load(
        make_sql(tmp_path / "shop.sql"), include=["album", "artist"], columns=True
    ).catalog
    assert catalog["album"].text == (
        "CREATE TABLE album (\n"
        "    album_id INTEGER NOT NULL,\n"
        "    artist_id INTEGER NOT NULL,\n"
        "    PRIMARY KEY (album_id),\n"
        "    FOREIGN KEY (artist_id) REFERENCES artist (artist_id)\n"
        ")"
    )
    assert (
        catalog["album.title"].text == "ALTER TABLE album ADD COLUMN title NVARCHAR(160) NOT NULL"
    )
    assert {table.name: table.references for table in catalog} == {
        "artist": (),
        "artist.name": ("artist",),
        "album": ("artist",),
        "album.title": ("album",),
    }


def test_tables_and_their_columns_read_back_as_the_whole_tables(tmp_path: Path) -> None:
    source = make_sql(tmp_path / "shop.sql")
    parts = load(source, columns=True).catalog
    again = tmp_path / "again.sql"
    again.write_text(";\n".join(table.text for table in parts) + ";\n")
    for whole, back in zip(load(source).catalog, load(again).catalog, strict=True):
        assert back.name == whole.name
        assert back.references == whole.references
        assert sorted(back.text.splitlines()) == sorted(whole.text.splitlines())


def test_a_table_without_keys_keeps_its_first_column(tmp_path: Path) -> None:
    (tmp_path / "log.sql").write_text("CREATE TABLE log (at TEXT, line TEXT);")
    catalog = load(tmp_path / "log.sql", columns=True).catalog
    assert catalog.names == ("log", "log.line")
    assert catalog["log"].text == "CREATE TABLE log (\n    at TEXT\n)"


def test_keys_that_spell_a_column_in_another_case_keep_it(tmp_path: Path) -> None:
    (tmp_path / "odd.sql").write_text(
        "CREATE TABLE log (Id INT, At TEXT, Line TEXT, PRIMARY KEY (id),"
        " FOREIGN KEY (LINE) REFERENCES line (id));"
    )
    assert load(tmp_path / "odd.sql", columns=True).catalog.names == ("log", "log.At")


def test_a_catalog_cannot_be_taken_apart(tmp_path: Path) -> None:
    path = tmp_path / "tables.jsonl"
    load(make_sql(tmp_path / "shop.sql")).catalog.write(path)
    with pytest.raises(PromptError, match="whose tables are written already"):
        load(path, columns=True)
