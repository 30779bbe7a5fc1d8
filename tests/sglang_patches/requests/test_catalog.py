# SPDX-License-Identifier: Apache-2.0
"""The catalog of a server: from its file, and another in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from depcache.config import Config
from depcache.errors import ConfigError
from depcache.tables import Catalog, Table

pytest.importorskip("ahocorasick", reason="needs the extra `tables`")

from sglang_patches.requests.catalog import ServedCatalog

SHOP = Catalog(
    [Table("album", "CREATE TABLE album", ("artist",)), Table("artist", "CREATE artist")]
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    SHOP.write(tmp_path / "tables.jsonl")
    return tmp_path / "tables.jsonl"


def test_without_settings_nothing_is_found() -> None:
    served = ServedCatalog()
    served.set(Config())
    assert [served.tables(match) for match in (None, True, False)] == [None] * 3
    assert served.describe() == {"match": False, "digest": None, "tables": []}


@pytest.mark.parametrize("matches", [True, False])
def test_a_request_may_say_otherwise(file: Path, matches: bool) -> None:
    served = ServedCatalog()
    served.set(Config(tables=str(file), match_tables=matches))
    assert (served.tables() is not None) == matches
    assert served.tables(True) is not None and served.tables(False) is None


def test_it_is_described_without_what_stands_in_the_tables(file: Path) -> None:
    served = ServedCatalog()
    served.set(Config(tables=str(file)))
    told = served.describe()
    assert told == {
        "match": False,
        "digest": SHOP.digest,
        "tables": [
            {"name": "album", "characters": 18, "references": ["artist"]},
            {"name": "artist", "characters": 13, "references": []},
        ],
    }
    assert "CREATE" not in json.dumps(told)


def test_another_catalog_takes_its_place(file: Path) -> None:
    served = ServedCatalog()
    served.set(Config(tables=str(file), match_tables=True))
    before = served.tables()
    served.replace(Catalog([Table("genre", "CREATE genre")]))
    after = served.tables()
    assert before is not None and after is not None
    text = "CREATE genre, CREATE artist?"
    assert [hit.table.name for hit in after.recognise(text).found.hits] == ["genre"]
    # A request that was being read goes on with the one it began with.
    assert [hit.table.name for hit in before.recognise(text).found.hits] == ["artist"]
    served.set(Config())
    assert served.tables(True) is None


@pytest.mark.parametrize("content", ["", "{}", "no json", '{"name": "a"}'])
def test_a_file_that_is_no_catalog_stops_the_server_with_one_sentence(
    tmp_path: Path, content: str
) -> None:
    file = tmp_path / "tables.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"setting tables = .*tables\.jsonl") as caught:
        ServedCatalog().set(Config(tables=str(file)))
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot read"):
        ServedCatalog().set(Config(tables=str(tmp_path / "none")))
