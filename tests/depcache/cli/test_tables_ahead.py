# SPDX-License-Identifier: Apache-2.0
"""`depcache tables precompute|invalidate`: what they print, what `--json` gives, exit codes."""

from __future__ import annotations

import json

import pytest
from jsonschema import validate

from depcache.cli import tables_ahead as command
from depcache.precompute import PrecomputeReport
from tests.depcache.precompute.fake import FakeCache, refused
from tests.helpers.json_keys import documented_keys, keys_of

pytest.importorskip("sqlglot", reason="needs the extra `tables`")

SCHEMA = """
CREATE TABLE town (town_id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE buyer (buyer_id INTEGER PRIMARY KEY, town_id INTEGER REFERENCES town (town_id));
CREATE TABLE orders (order_id INTEGER PRIMARY KEY, buyer_id INTEGER REFERENCES buyer (buyer_id));
CREATE TABLE colour (colour_id INTEGER PRIMARY KEY);
"""

NUMBER, TEXT, FLAG = {"type": "integer", "minimum": 0}, {"type": "string"}, {"type": "boolean"}
TEXTS = {"type": "array", "items": TEXT}
ESTIMATE = {
    "type": "object",
    "properties": dict.fromkeys(("tokens", "bytes", "cached_tokens", "done"), NUMBER),
    "required": ["tokens", "bytes", "cached_tokens", "done"],
}
PRECOMPUTED = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("computed", "failed", "tokens_computed", "bytes"), NUMBER),
        "estimate": ESTIMATE,
        "notes": TEXTS,
        "catalog": TEXT,
        "state": TEXT,
    },
    "required": ["computed", "failed", "tokens_computed", "estimate", "notes", "catalog", "state"],
}
INVALIDATED = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("added", "removed", "changed", "stale"), TEXTS),
        "tokens": {"type": "object", "additionalProperties": NUMBER},
        "in_use": NUMBER,
        "refused": NUMBER,
        "problems": {"type": "array"},
        "forgotten": {"type": ["integer", "null"]},
        "dry_run": FLAG,
        "catalog": TEXT,
    },
    "additionalProperties": False,
}
INVALIDATED["required"] = list(INVALIDATED["properties"])


def test_the_docs_have_every_key_of_json() -> None:
    assert documented_keys("invalidate") == keys_of(INVALIDATED)
    report = PrecomputeReport("tables").to_json()
    assert documented_keys("precompute") == {*report, *PRECOMPUTED["properties"]}


@pytest.fixture
def server(monkeypatch):
    fake = FakeCache()
    fake.take_place(monkeypatch, command)
    return fake


@pytest.fixture
def load(call, tmp_path):
    """`load("now.jsonl")` makes a catalog of the schema, with some words in it replaced."""

    def make(name, *replaced):
        text = SCHEMA
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "schema.sql").write_text(text)
        assert call("tables", "load", tmp_path / "schema.sql", "--catalog", tmp_path / name)[0] == 0
        return tmp_path / name

    return make


@pytest.fixture
def precompute(call, load, tmp_path):
    catalog = load("catalog.jsonl")
    fixed = ["--catalog", catalog, "--state", tmp_path / "state.jsonl"]
    return lambda *arguments: call("tables", "precompute", *fixed, *arguments)


def test_an_estimate_computes_nothing(precompute, server, tmp_path):
    code, out, err = precompute("--estimate")
    assert (code, err) == (0, "")
    assert "4" in out and "bytes a token" in out and "room for 10,000 tokens" in out
    assert server.sent == [] and not (tmp_path / "state.jsonl").exists()
    answer = json.loads(precompute("--estimate", "--json")[1])
    validate(answer["estimate"], ESTIMATE)
    assert answer["estimate"]["bytes"] == answer["estimate"]["tokens"] * 100 > 0
    assert server.sent == []


def test_what_is_referred_to_comes_first_and_the_next_run_has_nothing_to_do(precompute, server):
    code, out, _ = precompute("--json")
    answer = json.loads(out)
    validate(answer, PRECOMPUTED)
    assert (code, answer["failed"]) == (0, 0)
    assert answer["tokens_computed"] == len(server.cached) + 9  # the system is cached as one
    rows = [row for sent in server.sent for (row,) in sent]
    names = [row.split()[2] for row in rows]
    assert [name for name in names if name != "colour"] == ["town", "buyer", "orders"]
    num_sent = len(server.sent)
    again = json.loads(precompute("--json")[1])
    assert (again["computed"], again["tokens_computed"], len(server.sent)) == (0, 0, num_sent)


def test_tables_alone_and_sets_of_a_log_are_computed_besides(precompute, server, tmp_path):
    num = json.loads(precompute("--estimate", "--json")[1])["estimate"]["tokens"]
    alone = json.loads(precompute("--estimate", "--json", "--alone")[1])["estimate"]["tokens"]
    sets = tmp_path / "sets.jsonl"
    sets.write_text('["orders", "colour"]\n["buyer"]\n')
    some = json.loads(precompute("--estimate", "--json", "--sets", sets)[1])["estimate"]["tokens"]
    assert num < alone and num < some
    assert precompute("--alone", "--sets", sets)[0] == 0
    assert json.loads(precompute("--json", "--alone", "--sets", sets)[1])["computed"] == 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--sees", "everything"], "everything"),
        (["--system", "a", "--system-file", "b"], "--system"),
        (["--request-tokens", "0"], "request-tokens"),
    ],
)
def test_a_wrong_call_is_one_sentence_and_exit_code_2(precompute, server, arguments, word):
    code, _, err = precompute(*arguments)
    assert code == 2 and word in err
    assert server.sent == []


@pytest.mark.parametrize("line", ["{}", "no json", '["town", 3]'])
def test_a_line_that_is_no_set_of_tables_is_named(precompute, server, tmp_path, line):
    sets = tmp_path / "sets.jsonl"
    sets.write_text(f'["town"]\n{line}\n')
    code, _, err = precompute("--sets", sets)
    assert code == 2 and "line 2 of " in err and "write a JSON list" in err
    sets.write_text('["town", "nobody"]\n')
    code, _, err = precompute("--sets", sets)
    assert code == 2 and "'nobody' is no table of the catalog" in err
    assert server.sent == []


def test_a_server_that_refuses_a_table_is_told_and_the_rest_is_computed(precompute, server):
    server.on_chat = lambda paths: refused() if "colour" in str(paths) else None
    code, out, _ = precompute("--json")
    answer = json.loads(out)
    assert code == 0
    assert (answer["failed"], answer["computed"]) == (1, 3)


def test_a_change_gives_up_what_it_touches_and_no_more(call, load, precompute, server, tmp_path):
    precompute()
    before = tmp_path / "catalog.jsonl"
    after = load(
        "after.jsonl",
        ("buyer_id INTEGER PRIMARY KEY", "buyer_id INTEGER PRIMARY KEY, name TEXT"),
        ("CREATE TABLE colour", "CREATE TABLE shade"),
    )
    fixed = ["tables", "invalidate", "--old", before, "--catalog", after]
    state = ["--state", tmp_path / "state.jsonl"]

    code, out, err = call(*fixed, "--dry-run")
    assert (code, err) == (0, "")
    assert out.splitlines() == ["buyer", "colour", "orders", "3 tables are affected"]
    said = json.loads(call(*fixed, *state, "--dry-run", "--json")[1])
    validate(said, INVALIDATED)
    assert (said["added"], said["removed"], said["changed"]) == (["shade"], ["colour"], ["buyer"])
    assert sorted(said["stale"]) == ["buyer", "colour", "orders"]
    assert said["dry_run"] is True and said["tokens"] == {}
    assert server.invalidated == []

    code, out, _ = call(*fixed, *state, "--json")
    said = json.loads(out)
    validate(said, INVALIDATED)
    assert code == 0 and said["dry_run"] is False
    assert said["tokens"]["device"] == said["forgotten"] == 3
    assert {path[0].split()[2] for path in server.cached if path} == {"town"}
    again = json.loads(call(*fixed, *state, "--json")[1])
    assert again["tokens"] == {"device": 0} and again["forgotten"] == 0


def test_without_a_catalog_there_is_a_sentence(call, tmp_path):
    code, _, err = call(
        *("tables", "invalidate", "--old", tmp_path / "none.jsonl"),
        *("--catalog", tmp_path / "none.jsonl", "--dry-run"),
    )
    assert code == 2 and "none.jsonl" in err
