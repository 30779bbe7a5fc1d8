# SPDX-License-Identifier: Apache-2.0
"""`depcache tables ...` and `depcache ask --tables`: what they print, write and refuse."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
from pathlib import Path

import pytest
from jsonschema import validate

from depcache.tables import Catalog
from tests.depcache.tables.shop import REFERENCES, SQL, make_json, make_sql, make_sqlite
from tests.helpers.json_keys import documented_keys, keys_of

pytest.importorskip("sqlglot", reason="needs the extra `tables`")
pytest.importorskip("sqlalchemy", reason="needs the extra `tables`")
pytest.importorskip("ahocorasick", reason="needs the extra `tables`")

NAMES = {"type": "array", "items": {"type": "string"}}
COUNT = {"type": "integer", "minimum": 0}
TEXT = {"type": "string"}


def record(**properties: object) -> dict[str, object]:
    """The schema of an object that has all of these keys and no other."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def array(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


LOADED = record(
    tables=COUNT,
    references=COUNT,
    unknown_references=array(array(TEXT)),
    units_in_cycles=array(NAMES),
    notes=NAMES,
    digest={"type": "string", "pattern": "^[0-9a-f]{64}$"},
    catalog=TEXT,
)
SHOWN = record(
    tables=array(
        record(name=TEXT, characters=COUNT, references=NAMES, unit=NAMES, closure=NAMES, text=TEXT)
    ),
    closure=NAMES,
    added=NAMES,
    components=array(NAMES),
    digest=TEXT,
)
FOUND = record(
    message={"type": ["integer", "null"], "minimum": 0},
    outline={"type": ["object", "null"]},
    hits=array(record(name=TEXT, start=COUNT, stop=COUNT, references=NAMES)),
    unmatched=array(record(start=COUNT, stop=COUNT, reason=TEXT)),
    reason=TEXT,
)


@pytest.mark.parametrize(
    ("command", "schema"), [("load", LOADED), ("show", SHOWN), ("find", FOUND)]
)
def test_the_docs_have_every_key_of_json(command: str, schema: dict) -> None:
    assert documented_keys(command) == keys_of(schema)


@pytest.fixture
def catalog(call, tmp_path: Path) -> Path:
    path = tmp_path / "tables.jsonl"
    code, _, err = call("tables", "load", make_sql(tmp_path / "shop.sql"), "--catalog", path)
    assert (code, err) == (0, "")
    return path


@pytest.mark.parametrize("make", [make_sql, make_sqlite, make_json])
def test_load_says_what_is_in_the_catalog(call, tmp_path: Path, make) -> None:
    suffix = {make_sql: "sql", make_sqlite: "db", make_json: "json"}[make]
    source = make(tmp_path / f"shop.{suffix}")
    path = tmp_path / "tables.jsonl"
    code, out, err = call("tables", "load", source, "--catalog", path, "--json")
    found = json.loads(out)
    validate(found, LOADED)
    assert (code, err) == (0, "")
    assert (found["tables"], found["references"]) == (9, 7)  # a reference to itself is no edge
    assert found["unknown_references"] == found["units_in_cycles"] == found["notes"] == []
    assert Catalog.read(path).digest == found["digest"]
    assert f"9 tables and 7 references are in {str(path)!r}" in call(
        "tables", "load", source, "--catalog", path
    )[1].replace("\n", "")


def test_columns_are_loaded_and_shown_by_a_pattern(call, tmp_path: Path) -> None:
    source, path = make_sql(tmp_path / "shop.sql"), tmp_path / "tables.jsonl"
    code, out, err = call("tables", "load", source, "--columns", "--catalog", path)
    assert (code, err) == (0, "")
    assert out.startswith("20 tables and columns and 18 references are in ")
    code, out, _ = call("tables", "show", "Track.*", "--catalog", path, "--json")
    found = json.loads(out)
    validate(found, SHOWN)
    assert [each["name"] for each in found["tables"]] == ["track.name", "track.price"]
    assert found["added"] == ["artist", "album", "genre", "track"]
    code, _, err = call("tables", "show", "x*", "--catalog", path)
    assert code == 2 and "fits the pattern 'x*'" in err


def test_load_says_what_is_not_in_the_catalog(call, tmp_path: Path) -> None:
    source = tmp_path / "odd.sql"
    source.write_text(
        "CREATE TABLE a (b INT REFERENCES b, c INT REFERENCES c);\nCREATE TABLE x (a INT;\n"
        "CREATE TABLE b (a INT REFERENCES a);"
    )
    path = tmp_path / "tables.jsonl"
    code, out, _ = call("tables", "load", source, "--catalog", path, "--json")
    found = json.loads(out)
    validate(found, LOADED)
    assert code == 0
    assert found["unknown_references"] == [["a", "c"]]
    assert found["units_in_cycles"] == [["a", "b"]]
    assert len(found["notes"]) == 1 and "line 2" in found["notes"][0]
    _, out, _ = call("tables", "load", source, "--catalog", path)
    assert "a refers to c" in out and "line 2" in out


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["none.sql"], 2, "cannot read"),
        (["shop.sql", "--dialect", "latin"], 2, "no dialect"),
        (["shop.sql", "--form", "xml"], 2, "no form"),
        (["shop.sql", "--include", "x*"], 2, "no table that is wanted"),
        (["shop.csv"], 2, "ends like no source"),
        (["nothing://ann:hunter2@host/db"], 2, "no URL"),
        (["sqlite:////nowhere/hunter2.db"], 3, "cannot be read"),
    ],
)
def test_a_source_that_cannot_be_read_leaves_the_catalog(
    call, catalog: Path, monkeypatch: pytest.MonkeyPatch, arguments, code: int, reason: str
) -> None:
    monkeypatch.chdir(catalog.parent)
    before = catalog.read_bytes()
    found, out, err = call("tables", "load", *arguments, "--json")
    assert (found, out) == (code, "")
    assert reason in err and err.startswith("depcache: ") and err.count("\n") == 1
    assert "hunter2" not in err
    assert catalog.read_bytes() == before


def test_show_says_what_a_prompt_would_hold(call, catalog: Path) -> None:
    code, out, _ = call("tables", "show", "TRACK", "album", "--catalog", catalog, "--json")
    found = json.loads(out)
    validate(found, SHOWN)
    assert code == 0
    assert found["closure"] == ["artist", "album", "genre", "track"]
    assert found["added"] == ["artist", "genre"]
    assert [each["name"] for each in found["tables"]] == ["album", "track"]
    assert len(found["components"]) == 1
    out = call("tables", "show", "track", "--catalog", catalog)[1]
    assert "CREATE TABLE track (" in out and "a prompt also gets artist, album, genre" in out
    out = call("tables", "show", "--catalog", catalog)[1]
    assert all(name in out for name in REFERENCES) and "CREATE TABLE" not in out


def test_show_draws_the_references(call, tmp_path: Path) -> None:
    source = tmp_path / "odd.db"
    with sqlite3.connect(source) as connection:
        connection.execute('CREATE TABLE "a""\\b" (c INT REFERENCES d)')
    path = tmp_path / "tables.jsonl"
    call("tables", "load", source, "--catalog", path)
    out = call("tables", "show", "--dot", "--catalog", path)[1]
    assert out == 'digraph tables {\n  "a\\"\\\\b";\n  "a\\"\\\\b" -> "d";\n}\n'


def test_what_is_not_in_the_catalog_is_one_sentence(call, catalog: Path) -> None:
    for arguments in (["show", "albun"], ["show", ""]):
        code, out, err = call("tables", *arguments, "--catalog", catalog)
        assert (code, out, err.count("\n")) == (2, "", 1)
    code, _, err = call("tables", "show", "--catalog", catalog.parent / "none")
    assert code == 2 and "cannot read" in err


def test_find_says_which_tables_stand_where(call, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(SQL)
    code, out, _ = call("tables", "find", file, "--json")
    found = json.loads(out)
    validate(found, FOUND)
    assert code == 0 and found["message"] is None and found["reason"] == ""
    assert [hit["name"] for hit in found["hits"]][:2] == ["employee", "customer"]
    assert found["hits"][1]["references"] == ["employee"]
    for hit in found["hits"]:
        assert SQL[hit["start"] : hit["stop"]].startswith(f"CREATE TABLE {hit['name']} ")
    assert {each["reason"] for each in found["unmatched"]} == {"it stands outside the longest run"}
    # customer, invoice and invoice_line see one each; track is not of this run.
    assert found["outline"]["sees"] == [[], [0], [1], [2], []]
    assert found["outline"]["absent"] == 1
    out = call("tables", "find", file)[1]
    assert "5 tables in the text" in out and "CREATE TABLE artist" in out


def test_find_takes_the_message_with_most_tables(
    call, catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {each.name: each.text for each in Catalog.read(catalog)}
    messages = [
        {"role": "system", "content": texts["artist"]},
        {"role": "user", "content": f"Tables: {texts['album']}\n\n{texts['artist']}\nQuestion?"},
        {"role": "user", "content": "Well?"},
    ]
    for content, options, message in (
        (messages, ["--catalog", catalog], 1),
        ({"messages": messages}, [], 1),
        (messages[-1:], [], 0),
    ):
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(content)))
        code, out, _ = call("tables", "find", *options, "--json")
        found = json.loads(out)
        validate(found, FOUND)
        assert (code, found["message"]) == (0, message)
        assert [hit["name"] for hit in found["hits"]] == (["album", "artist"] if message else [])
        assert bool(found["reason"]) == (not message)


def test_find_prints_nothing_that_moves_a_cursor(call, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("CREATE TABLE \x1b[2J (a INT)")
    code, out, _ = call("tables", "find", file)
    assert code == 0 and "no tables: " in out and "\x1b" not in out


def test_a_table_needs_a_catalog(call) -> None:
    code, out, err = call("ask", "Q?", "--table", "album")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--tables" in err


def test_ask_names_the_tables_before_the_server_is_away(call, catalog: Path) -> None:
    arguments = ["--tables", catalog, "--server", "127.0.0.1:9"]
    code, out, err = call("ask", "Q?", "--table", "album", *arguments)
    assert code == 3 and out == "tables: artist, album\n" and err.count("\n") == 1
    code, out, err = call("ask", "Q?", "--table", "album", "--sees", "all", *arguments)
    assert (code, out) == (2, "") and "nothing, references, component" in err
    code, out, err = call("ask", "Q?", "--table", "albun", *arguments)
    assert (code, out) == (2, "") and "'album'" in err


def test_without_the_extra_the_sentence_says_how_to_install_it(
    call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_sql(tmp_path / "shop.sql")
    for name in [name for name in sys.modules if name.split(".")[0] == "sqlglot"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    code, _, err = call("tables", "load", source, "--catalog", tmp_path / "tables.jsonl")
    assert code == 2 and "depcache[tables]" in err and err.count("\n") == 1
    assert not (tmp_path / "tables.jsonl").exists()
