# SPDX-License-Identifier: Apache-2.0
"""Prompts as others write them, and the rows that come of their tables."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from depcache.errors import ConfigError, PromptError
from depcache.prompt.outline import MAX_SEEING_ROWS, Outline
from depcache.tables import Catalog, Table, render_tables
from depcache.tables.find import MAX_LEN, Found, Hit
from depcache.tables.seen import SEES
from tests.depcache.tables.shop import REFERENCES

pytest.importorskip("sqlglot", reason="needs the extra `tables`")
pytest.importorskip("ahocorasick", reason="needs the extra `tables`")

from depcache.tables.prompt_tables import PromptTables

COLUMNS = {
    name: "".join(f",\n\tFOREIGN KEY({to}_id) REFERENCES {to} ({to}_id)" for to in targets)
    for name, targets in REFERENCES.items()
}
CATALOG = Catalog(
    Table(name, f"CREATE TABLE {name} (\n\t{name}_id INTEGER{COLUMNS[name]}\n)", targets)
    for name, targets in REFERENCES.items()
)
SAMPLE = "\n\n/*\n1 rows from {name} table:\n{name}_id\n7\n*/"


def langchain(names: list[str], question: str, sample: str = SAMPLE) -> str:
    """As `SQLDatabase.get_table_info` and the chain around it write tables."""
    tables = [f"\n{CATALOG[name].text}{sample.format(name=name)}" for name in names]
    tables.sort()
    info = "\n\n".join(tables)
    return f"Write SQLite. Use these tables alone:\n{info}\n\nQuestion: {question}\nSQLQuery: "


def describe(table: Table) -> str:
    columns = [f"{table.name}_id (INTEGER)"]
    keys = ", ".join(f"['{to}_id'] -> {to}.['{to}_id']" for to in table.references)
    return f"Table '{table.name}' has columns: {', '.join(columns)}, " + (
        f" and foreign keys: {keys}." if keys else "."
    )


DESCRIBED = Catalog(Table(each.name, describe(each), each.references) for each in CATALOG)


def llamaindex(names: list[str], question: str) -> str:
    """As LlamaIndex's `SQLDatabase` and its text-to-SQL prompt write tables."""
    info = "\n\n".join(DESCRIBED[name].text for name in names)
    return f"Use tables below.\n{info}\n\nQuestion: {question}\nSQLQuery: "


READERS: dict[str, tuple[PromptTables, Callable[[list[str], str], str]]] = {
    "LangChain, any tables": (PromptTables.make("ddl", deadline_s=None), langchain),
    "LangChain, a catalog": (PromptTables.make(CATALOG), langchain),
    "LlamaIndex, a catalog": (PromptTables.make(DESCRIBED), llamaindex),
}


def rows_of(outline: Outline | None, text: str) -> list[str]:
    """The text of each row."""
    assert outline is not None
    pieces = iter(outline.pieces(text))
    return ["".join(next(pieces) for _ in range(count)) for count in outline.rows]


@pytest.mark.parametrize("name", READERS)
def test_a_frameworks_table_is_the_same_row_wherever_it_stands(name: str) -> None:
    tables, write = READERS[name]
    rows: dict[str, set[str]] = {}
    for names in permutations(["album", "track", "artist"], 2):
        text = write(list(names), "How many?")
        looked = tables.recognise(text)
        assert looked.found.hits and looked.text == text
        found = [hit.table.name for hit in looked.found.hits]
        assert sorted(found) == sorted(names)
        for table, row in zip(found, rows_of(looked.outline, text), strict=True):
            rows.setdefault(table, set()).add(row)
    assert {name: len(written) for name, written in rows.items()} == dict.fromkeys(rows, 1)


@pytest.mark.parametrize("name", READERS)
def test_found_tables_see_those_they_refer_to(name: str) -> None:
    tables, write = READERS[name]
    text = write(["album", "artist", "opening_hour"], "How many?")
    looked = tables.recognise([{"role": "user", "content": text}])
    outline = looked.outline
    assert outline is not None and outline.message == looked.message == 0
    assert outline.sees == ((1,), (), ()) and outline.absent == 0
    lonely = tables.recognise(write(["track", "opening_hour"], "How many?")).outline
    assert lonely is not None and lonely.sees == () and lonely.absent == 2


def test_a_catalog_knows_what_leads_through_a_table_that_is_left_out() -> None:
    text = langchain(["artist", "track"], "How many?")  # album is between the two
    by_catalog = PromptTables.make(CATALOG).recognise(text).outline
    assert by_catalog is not None and by_catalog.sees == ((), (0,)) and by_catalog.absent == 2
    by_itself = PromptTables.make("ddl", deadline_s=None).recognise(text).outline
    assert by_itself is not None and by_itself.sees == () and by_itself.absent == 2


@pytest.mark.parametrize("sees", SEES)
def test_what_render_tables_writes_is_found_as_it_says(sees: Any) -> None:
    prompt = render_tables(CATALOG, ["track", "customer"], "How many?", close=False, sees=sees)
    said = Outline.from_json(prompt.extra_body["custom_params"]["depcache_outline"])
    assert PromptTables.make(CATALOG, sees=sees).recognise(prompt.messages).outline == said
    closed = render_tables(CATALOG, ["track", "invoice_line"], "How many?", sees=sees)
    said = Outline.from_json(closed.extra_body["custom_params"]["depcache_outline"])
    for tables in (CATALOG, "ddl"):
        assert (
            PromptTables.make(tables, sees=sees, deadline_s=None).recognise(closed.messages).outline
            == said
        )


def test_rows_hold_the_tables_and_blanks_alone_whatever_the_blanks() -> None:
    draw = random.Random(5)
    tables = PromptTables.make(CATALOG)
    for _ in range(500):
        names = draw.sample(list(REFERENCES), draw.randint(1, 5))
        text = draw.choice(["", "Tables:", "  \n", "Tables:\n\n"])
        for name in names:
            text += draw.choice(["\n", "\n\n", " \n ", "\u2003"]) + CATALOG[name].text
        text += draw.choice(["", "\n", "\n\nWho?", " Who?", "Who?"])
        looked = tables.recognise(text)
        rows = rows_of(looked.outline, text)
        assert [row.strip() for row in rows] == [CATALOG[name].text for name in names]
        assert looked.outline is not None
        start, stop = looked.outline.start, looked.outline.stop
        assert "".join(rows) == text[start:stop]
        # Many templates trim messages.
        assert text.strip() == text or (text.lstrip().startswith("Tables") or start > 0)
        assert stop <= len(text.rstrip())


OLD, NEW = langchain(["album", "artist", "genre"], "Old?"), langchain(["artist", "album"], "New?")
ANSWER = {"role": "assistant", "content": "SELECT 1"}


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "system", "content": OLD}, {"role": "user", "content": NEW}], 0),
        # What the model has answered counts where nothing newer holds tables.
        ([{"role": "user", "content": OLD}, ANSWER, {"role": "user", "content": NEW}], 2),
        ([{"role": "user", "content": OLD}, ANSWER, {"role": "user", "content": "Why?"}], 0),
        ([{"role": "system", "content": OLD}, ANSWER, {"role": "user", "content": NEW}], 0),
        ([{"role": "user", "content": "Hi"}, {"role": "tool", "content": NEW}], 1),
        ([{"role": "user", "content": [{"type": "text", "text": NEW}]}], 0),
        ([{"role": "assistant", "content": NEW}, {"role": "user", "content": "Why?"}], None),
        ([{"role": "user", "content": [{"text": NEW}, {"text": NEW}]}], None),
        ([{"role": "user", "content": "Hello"}], None),
        ([], None),
        ([{"role": "user"}, 3, None], None),
    ],
)
def test_one_message_is_read(messages: list[Any], message: int | None) -> None:
    outline = PromptTables.make("ddl", deadline_s=None).recognise(messages).outline
    assert (None if outline is None else outline.message) == message
    if outline is not None:
        assert outline.num_rows == (3 if messages[outline.message or 0]["content"] == OLD else 2)


class Counting:
    """A finder that counts what it is shown."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.num = 0

    def find(self, text: str) -> list[Hit]:
        return []

    def look(self, text: str) -> Found:
        self.num += 1
        return self.found


def test_a_prompt_is_given_up_as_a_whole(caplog: pytest.LogCaptureFixture) -> None:
    chat = [{"role": "user", "content": "x" * (MAX_LEN // 2)}] * 2
    finder = Counting(Found(()))
    looked = PromptTables(finder).recognise(chat)
    assert looked.outline is None and looked.found.gave_up and finder.num == 0
    finder = Counting(Found((), reason="too much", gave_up=True))
    looked = PromptTables(finder).recognise([{"role": "user", "content": "x"}] * 5)
    assert looked.outline is None and finder.num == 1
    finder = Counting(Found(()))
    PromptTables(finder, deadline_s=0).recognise([{"role": "user", "content": "x"}] * 5)
    assert finder.num == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


def test_more_tables_than_an_outline_holds_pass_with_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tables = [Table("t0", "CREATE t0;")]
    tables += [Table(f"t{n}", f"CREATE t{n};", ("t0",)) for n in range(1, MAX_SEEING_ROWS + 1)]
    text = "\n".join(table.text for table in tables)
    looked = PromptTables.make(Catalog(tables)).recognise(text)
    assert looked.outline is None and len(caplog.records) == 1
    fewer = PromptTables.make(Catalog(tables)).recognise(text[: text.rindex("\n")])
    assert fewer.outline is not None and fewer.outline.num_rows == MAX_SEEING_ROWS


@pytest.mark.parametrize("tables", ["sql", "", 3, None, ["ddl"]])
def test_what_is_no_catalog_is_refused(tables: Any) -> None:
    with pytest.raises(
        ConfigError, match=r'tables is .*: give a depcache\.tables\.Catalog, or "ddl"'
    ):
        PromptTables.make(tables)
    with pytest.raises(PromptError, match="sees is 'all'"):
        PromptTables.make("ddl", sees="all")
