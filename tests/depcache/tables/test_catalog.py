# SPDX-License-Identifier: Apache-2.0
"""A catalog finds tables by name, survives a file, and knows what changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.errors import ConfigError, PromptError
from depcache.tables import Catalog, Table

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
TABLES = st.lists(
    st.builds(Table, TEXTS, TEXTS, st.lists(TEXTS, max_size=3)),
    min_size=1,
    max_size=5,
    unique_by=lambda table: table.name,
)


def make(**references: str) -> Catalog:
    """`make(album="artist")`: each table's references, with blanks between them."""
    return Catalog(Table(name, f"T {name}", tuple(to.split())) for name, to in references.items())


@given(tables=TABLES)
@settings(max_examples=50)
def test_a_file_gives_back_every_table(tables: list[Table], tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("catalog") / "tables.jsonl"
    catalog = Catalog(tables)
    catalog.write(path)
    found = Catalog.read(path)
    assert list(found) == tables
    assert found.digest == catalog.digest == Catalog(reversed(tables)).digest


def test_a_digest_sees_every_change() -> None:
    digests = {
        Catalog([Table("a", "A")]).digest,
        Catalog([Table("a", "B")]).digest,
        Catalog([Table("b", "A")]).digest,
        Catalog([Table("a", "A", ("b",))]).digest,
        Catalog([Table("a", "A"), Table("b", "A")]).digest,
    }
    assert len(digests) == 5


def test_case_does_not_matter_where_it_does_not_decide() -> None:
    catalog = make(Orders="", orders="", Customer="")
    assert catalog["customer"].name == catalog["CUSTOMER"].name == "Customer"
    assert catalog["orders"].name == "orders"
    assert "customer" not in catalog  # the name itself
    with pytest.raises(PromptError, match="'ORDERS' is no table of the catalog: it has 'Orders', "):
        catalog.find("ORDERS")


def test_a_pattern_stands_for_the_names_that_fit() -> None:
    catalog = Catalog(Table(name, "T") for name in ["album", "Album.title", "album.year", "a*"])
    assert catalog.select(["ALBUM.*"]) == {"Album.title", "album.year"}
    assert catalog.select(["album*", "ALBUM"]) == {"album", "Album.title", "album.year"}
    assert catalog.select(["a*"]) == {"a*"}  # a name goes before a pattern
    with pytest.raises(PromptError, match="fits the pattern 'b\\*'"):
        catalog.select(["album", "b*"])


@pytest.mark.parametrize("name", ["custommer", "", "x" * 10_000, None, 3])
def test_what_is_no_table_names_the_nearest(name: object) -> None:
    with pytest.raises(PromptError) as caught:
        make(customer="", order="")[name]  # type: ignore[index]
    assert len(str(caught.value)) < 300
    assert (name != "custommer") or "'customer'" in str(caught.value)


def test_two_tables_of_one_name_are_refused() -> None:
    with pytest.raises(PromptError, match="two tables 'a'"):
        Catalog([Table("a", "A"), Table("a", "B")])


def test_a_change_makes_all_that_refer_to_it_stale() -> None:
    old = make(artist="", album="artist", track="album genre", genre="", hour="", gone="")
    tables = {table.name: table for table in old}
    del tables["gone"]
    tables["artist"] = Table("artist", "T artist with a column more")
    tables["new"] = Table("new", "T new")
    found = Catalog(tables.values()).difference(old)
    assert (found.added, found.removed, found.changed) == (("new",), ("gone",), ("artist",))
    assert found.stale == ("album", "artist", "gone", "track")
    assert found and not old.difference(old)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "holds no table"),
        ("\n\n", "holds no table"),
        ('{"name": "a", "text": "A"}\n{"name": "a", "text": "B"}\n', "two tables 'a'"),
        ('{"name": "a", "text": "A"}\n{"name": "b"\n', "line 2"),
        ('{"name": "a"}\n', "line 1"),
        ("[" * 100_000, "line 1"),
        ('["a"]', "line 1"),
    ],
)
def test_a_file_that_is_no_catalog_is_one_sentence(
    tmp_path: Path, content: str, reason: str
) -> None:
    path = tmp_path / "tables.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(PromptError) as caught:
        Catalog.read(path)
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        make(a="").write(tmp_path / "none" / "tables.jsonl")
    with pytest.raises(PromptError, match="check the path"):
        Catalog.read(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
