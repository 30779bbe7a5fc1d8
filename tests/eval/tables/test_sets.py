# SPDX-License-Identifier: Apache-2.0
"""Schemas and questions of a set, as files have them, and what is no set."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.sets import SetError
from eval.tables.sets import read_sql_set, words_of
from tests.eval.tables.made import SHOP, write_set


def test_tables_have_references_words_and_a_declared_order(tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    write_set(tmp_path / "sql", "spider")
    data = read_sql_set(tmp_path, "spider")
    assert data.catalog["shop.orders"].references == ("shop.buyers", "shop.goods")
    assert data.catalog["shop.buyers"].text == (
        "CREATE TABLE buyers (\n"
        "    id number,\n"
        "    town text, -- home town\n"
        "    PRIMARY KEY (id),\n"
        "    FOREIGN KEY (town) REFERENCES towns (id)\n"
        ")"
    )
    assert data.words["shop.buyers"] == {"buyer", "home", "town"}
    mixed = ["zoo.animals", "shop.towns", "shop.orders", "shop.goods"]
    assert data.declare(mixed) == ["shop.orders", "shop.goods", "shop.towns", "zoo.animals"]
    assert data.questions[0].gold == ("shop.buyers", "shop.orders")
    [best, *_] = data.rank(data.questions[1], data.catalog.names)
    assert best == "shop.goods"


def test_sets_of_two_parts_have_a_database_once(tmp_path: Path) -> None:
    write_set(tmp_path, "spider")
    write_set(tmp_path, "bird", [SHOP])
    data = read_sql_set(tmp_path, "sql")
    assert len(data.catalog) == 6
    assert len(data.questions) == 8


def test_words_are_compared_without_case_and_plural() -> None:
    assert words_of("raceId of the Drivers") == {"race", "the", "driver"}


@pytest.mark.parametrize(
    ("schemas", "words"),
    [
        ([{"db_id": "shop", "tables": []}], "no 'foreign_keys'"),
        ([{**SHOP, "foreign_keys": [["nothing.id", "goods.id"]]}], "row 0 of .* is no schema"),
        ([{**SHOP, "tables": [{"name": "orders"}]}], "is no schema"),
    ],
)
def test_what_is_no_schema_is_an_error(tmp_path: Path, schemas: list, words: str) -> None:
    write_set(tmp_path, "spider", schemas)
    with pytest.raises(SetError, match=words):
        read_sql_set(tmp_path, "spider")


def test_a_set_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SetError, match="use spider, bird, sql"):
        read_sql_set(tmp_path, "wikisql")
    with pytest.raises(SetError, match=r"cannot read .*bird_schemas\.jsonl"):
        read_sql_set(tmp_path, "bird")
