# SPDX-License-Identifier: Apache-2.0
"""Tables in prompts that the real LangChain and LlamaIndex wrote, word for word.

`make test-frameworks FRAMEWORKS="--only langchain-tables llamaindex-tables --record FILE"` writes
them anew: two questions over the SQLite file of `tests.frameworks.programs.common_tables`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from depcache.tables import load
from tests.frameworks.programs.common_tables import ASKED, make_file

pytest.importorskip("sqlglot", reason="needs the extra `tables`")
pytest.importorskip("sqlalchemy", reason="needs the extra `tables`")
pytest.importorskip("ahocorasick", reason="needs the extra `tables`")

from depcache.tables.prompt_tables import FoundTables, PromptTables

SERVERS = json.loads(Path(__file__).with_name("recorded_servers.json").read_text(encoding="utf-8"))
"""What LangChain's `SQLDatabase(..., sample_rows_in_table_info=2).get_table_info()` wrote over two
servers, after their schema (langchain-community 0.4.2, SQLAlchemy 2.1.9). Then the catalogs of both
forms had the text of each table as LangChain and LlamaIndex 0.14.25 wrote it."""

RECORDED = json.loads(
    Path(__file__).with_name("recorded_sqldatabase.json").read_text(encoding="utf-8")
)
READERS = {
    "LangChain, SQLDatabase": ("ddl", "langchain"),
    "LlamaIndex, SQLDatabase": ("llamaindex",),
}
"""Who wrote prompts to how tables are found in them: any CREATE TABLE, or a catalog by its form."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_file(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module", params=[(w, r) for w, readers in READERS.items() for r in readers])
def looked(request: pytest.FixtureRequest, file: Path) -> list[FoundTables]:
    """What a reader finds in both prompts."""
    writer, form = request.param
    assert len(RECORDED[writer]["prompts"]) == len(ASKED)
    tables = "ddl" if form == "ddl" else load(file, form=form).catalog
    finder = PromptTables.make(tables, deadline_s=None)
    return [finder.recognise(prompt) for prompt in RECORDED[writer]["prompts"]]


def rows_of(found: FoundTables) -> dict[str, str]:
    """Each table's row, by the name of the table."""
    assert found.outline is not None
    pieces = iter(found.outline.pieces(found.text))
    rows = ["".join(next(pieces) for _ in range(count)) for count in found.outline.rows]
    return {hit.table.name: row for hit, row in zip(found.found.hits, rows, strict=True)}


def test_the_tables_of_a_question_are_found(looked: list[FoundTables]) -> None:
    for (names, question), found in zip(ASKED, looked, strict=True):
        assert question in found.text
        assert set(rows_of(found)) == set(names)


def test_a_table_is_the_same_row_in_both(looked: list[FoundTables]) -> None:
    first, second = map(rows_of, looked)
    assert first.keys() & second.keys() == {"track", "album", "artist"}
    for name in first.keys() & second.keys():
        assert first[name] == second[name]


def test_a_table_sees_what_it_refers_to(looked: list[FoundTables], file: Path) -> None:
    references = load(file).catalog.references
    for found in looked:
        assert found.outline is not None
        names = [hit.table.name for hit in found.found.hits]
        for name, seen in zip(names, found.outline.sees, strict=True):
            reached = set(seen)
            while more := {o for row in reached for o in found.outline.sees[row]} - reached:
                reached |= more
            wanted = set(references.closure([name])) & set(names) - {name}
            assert {names[row] for row in reached} == wanted


@pytest.mark.parametrize("name", READERS)
def test_our_forms_write_what_the_frameworks_write(name: str, file: Path) -> None:
    form = READERS[name][-1]
    catalog = load(file, form=form).catalog
    for (names, _), prompt in zip(ASKED, RECORDED[name]["prompts"], strict=True):
        assert {each for each in names if catalog[each].text not in prompt} == set()


REFERENCES = {
    "Postgres 15.18, a shop": {"Order": ["customer", "product"], "customer": [], "product": []},
    "Postgres 15.18, types": {"m": [], "m1": [], "t1": [], "t2": [], "t3": ["t2"]},
    "MariaDB 10.11.19, a shop": {"order": ["customer"], "customer": []},
    "MariaDB 10.11.19, types": {"t1": [], "t2": [], "t3": ["t2"]},
}


@pytest.mark.parametrize("server", SERVERS)
def test_tables_of_a_server_are_found_as_langchain_writes_them(server: str) -> None:
    finder = PromptTables.make("ddl", deadline_s=None)
    found = finder.recognise(f"Tables:\n{SERVERS[server]['langchain']}\n\nHow many?").found
    assert found.unmatched == ()
    seen = {hit.table.name: sorted(hit.table.references) for hit in found.hits}
    assert seen == REFERENCES[server]
