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

RECORDED = json.loads(
    Path(__file__).with_name("recorded_sqldatabase.json").read_text(encoding="utf-8")
)
READERS = {
    "LangChain, SQLDatabase": ("ddl", "langchain"),
    "LlamaIndex, SQLDatabase": ("llamaindex",),
}
"""Who wrote prompts to how tables are found in them: any CREATE TABLE, or a catalog by its form."""

WITH_DEFAULT = {"Order Line"}
"""LangChain writes defaults, which the form `langchain` does not, so a catalog has another text."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_file(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module", params=[(w, r) for w, readers in READERS.items() for r in readers])
def looked(request: pytest.FixtureRequest, file: Path) -> tuple[set[str], list[FoundTables]]:
    """Tables that a reader does not know as they are written, and what it finds in both prompts."""
    writer, form = request.param
    assert len(RECORDED[writer]["prompts"]) == len(ASKED)
    tables = "ddl" if form == "ddl" else load(file, form=form).catalog
    finder = PromptTables.make(tables, deadline_s=None)
    return (
        WITH_DEFAULT if form == "langchain" else set(),
        [finder.recognise(prompt) for prompt in RECORDED[writer]["prompts"]],
    )


def rows_of(found: FoundTables) -> dict[str, str]:
    """Each table's row, by the name of the table."""
    assert found.outline is not None
    pieces = iter(found.outline.pieces(found.text))
    rows = ["".join(next(pieces) for _ in range(count)) for count in found.outline.rows]
    return {hit.table.name: row for hit, row in zip(found.found.hits, rows, strict=True)}


def test_the_tables_of_a_question_are_found(looked: tuple[set[str], list[FoundTables]]) -> None:
    unknown, both = looked
    for (names, question), found in zip(ASKED, both, strict=True):
        assert question in found.text
        assert set(rows_of(found)) == set(names) - unknown


def test_a_table_is_the_same_row_in_both(looked: tuple[set[str], list[FoundTables]]) -> None:
    unknown, both = looked
    first, second = map(rows_of, both)
    assert {"track", "album", "artist"} <= first.keys() & second.keys()
    for name in first.keys() & second.keys():
        if unknown:
            # Behind a table that is not known, the blanks are cut in another place.
            assert first[name].strip() == second[name].strip() and first[name] != second[name]
        else:
            assert first[name] == second[name]


def test_a_table_sees_what_it_refers_to(
    looked: tuple[set[str], list[FoundTables]], file: Path
) -> None:
    references = load(file).catalog.references
    for found in looked[1]:
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
        unlike = {each for each in names if catalog[each].text not in prompt}
        assert unlike == (WITH_DEFAULT & set(names) if form == "langchain" else set())
