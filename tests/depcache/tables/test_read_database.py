# SPDX-License-Identifier: Apache-2.0
"""Databases are read through the Inspector, and nothing of a URL is ever told."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from depcache.errors import ConfigError, DepCacheError, ServerError
from depcache.tables import load
from tests.depcache.tables.shop import make_sqlite

pytest.importorskip("sqlalchemy", reason="needs the extra `tables`")


def test_a_view_as_target_and_an_unknown_one_are_references_to_nothing(tmp_path: Path) -> None:
    path = tmp_path / "odd.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(
            "CREATE VIEW v AS SELECT 1 AS a;"
            "CREATE TABLE t (a INT REFERENCES v (a), b INT REFERENCES gone (b));"
        )
    catalog = load(path).catalog
    assert catalog.references.unknown == (("t", "gone"), ("t", "v"))
    with_views = load(path, views=True).catalog
    assert with_views.references.unknown == (("t", "gone"),)


def test_schemas_are_named(tmp_path: Path) -> None:
    path = make_sqlite(tmp_path / "shop.db")
    catalog = load(f"sqlite:///{path}", schemas=["main"], include=["main.alb*"]).catalog
    assert catalog.names == ("main.album",)
    assert catalog["main.album"].text.startswith("CREATE TABLE main.album (")
    with pytest.raises(DepCacheError):
        load(f"sqlite:///{path}", schemas=["none"])


SECRET = "hunter2-%40-secret"


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        (
            f"postgresql://ann:{SECRET}@127.0.0.1:9/shop",
            ConfigError | ServerError,
        ),  # no driver here
        (f"nothing://ann:{SECRET}@127.0.0.1/shop", ConfigError),
        (f"nothing+{SECRET}://", ConfigError),
        (f"sqlite:////nowhere/{SECRET}.db", ServerError),
        (f"sqlite:///file:/nowhere?mode=ro&uri=true&password={SECRET}", ServerError),
        (f"://{SECRET}", ConfigError),
        (f"sqlite://ann:{SECRET}@[::1", ConfigError),
    ],
)
def test_no_error_holds_a_password(url: str, kind, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DepCacheError) as caught:
        load(url)
    assert isinstance(caught.value, kind)
    seen = f"{caught.value}{caught.value.__cause__}{caplog.text}"
    assert SECRET not in seen and "secret" not in seen
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_no_password_is_in_a_catalog(tmp_path: Path) -> None:
    path = make_sqlite(tmp_path / "shop.db")
    catalog = load(f"sqlite:///{path}?timeout=9&check_same_thread=false").catalog
    catalog.write(tmp_path / "tables.jsonl")
    assert "timeout" not in (tmp_path / "tables.jsonl").read_text()
