# SPDX-License-Identifier: Apache-2.0
"""A tables.json as Spider and BIRD write it: databases, keys of several columns, labels, holes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from depcache.errors import PromptError
from depcache.tables import load
from depcache.tables.read_json import read_json
from tests.depcache.tables.shop import REFERENCES, make_json, to_json


def test_several_databases_are_told_apart(tmp_path: Path) -> None:
    source = make_json(tmp_path / "tables.json", "one", "two")
    both = load(source).catalog
    assert len(both) == 2 * len(REFERENCES)
    assert both["two.album"].references == ("two.artist",)
    assert both["two.album"].text.startswith("CREATE TABLE two.album (")
    assert load(source, schemas=["two"]).catalog["album"].references == ("artist",)
    with pytest.raises(PromptError, match="no database 'three': it has one, two"):
        load(source, schemas=["three"])


def test_keys_of_several_columns_are_read_in_both_spellings() -> None:
    entry = to_json("shop")
    (line,) = [t for t in read_json(json.dumps([entry]))[0] if t.table == "invoice_line"]
    assert line.primary_key == ("invoice_id", "line_number")
    bird = {**entry, "primary_keys": [entry["primary_keys"]]}
    assert read_json(json.dumps(bird)) == read_json(json.dumps([entry]))


def test_a_label_that_says_more_than_the_name_is_a_comment() -> None:
    entry = to_json("shop")
    entry["column_names"][1] = (0, "number of the artist")
    entry["table_names"][0] = "who plays"
    artist = read_json(json.dumps([entry]))[0][0]
    assert artist.comment == "who plays"
    assert [column.comment for column in artist.columns] == ["number of the artist", ""]


@pytest.mark.parametrize(
    "changed",
    [
        {"foreign_keys": [[1, 999]]},
        {"foreign_keys": [[0, 1]]},
        {"foreign_keys": [3]},
        {"column_types": []},
        {"column_names_original": [[0]]},
        {"table_names_original": None},
        {"primary_keys": 1},
    ],
    ids=repr,
)
def test_a_tables_json_with_a_hole_names_its_database(tmp_path: Path, changed: dict) -> None:
    path = make_json(tmp_path / "tables.json")
    (entry,) = json.loads(path.read_text())
    path.write_text(json.dumps([entry | changed]))
    with pytest.raises(PromptError, match=r"database 'shop' is not as in a tables\.json"):
        load(path)


@pytest.mark.skipif("SQL_SETS" not in os.environ, reason="set SQL_SETS to a tables.json to read it")
def test_every_database_of_a_data_set_is_read() -> None:
    catalog = load(os.environ["SQL_SETS"]).catalog
    assert catalog.references.unknown == ()
