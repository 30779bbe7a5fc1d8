# SPDX-License-Identifier: Apache-2.0
"""Finders against a naive search, on random texts and on the prompts that people write."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Sequence
from typing import Any

import pytest

from depcache.tables import Catalog, Table
from tests.depcache.tables.shop import SQL

pytest.importorskip("sqlglot", reason="needs the extra `tables`")
pytest.importorskip("ahocorasick", reason="needs the extra `tables`")

from depcache.tables import find
from depcache.tables.find import CatalogFinder, DdlFinder, Hit, choose_run

ALBUM = "CREATE TABLE album (id INT, artist_id INT REFERENCES Artist (id))"
ARTIST = "CREATE TABLE artist (id INT, name TEXT)"
GENRE = "CREATE TABLE genre (id INT)"


def find_naively(tables: list[Table], text: str) -> list[tuple[int, int, str]]:
    """Spans of tables: at each place all patterns, the longest wins, any blanks for a blank."""
    patterns = [
        (table.name, re.compile(r"\s+".join(map(re.escape, table.text.split()))))
        for table in tables
    ]
    found: list[tuple[int, int, str]] = []
    place = 0
    while place < len(text):
        here = [(m.end(), name) for name, p in patterns if (m := p.match(text, place))]
        if not here:
            place += 1
            continue
        stop = max(end for end, _ in here)
        found.append((place, stop, next(name for end, name in here if end == stop)))
        place = stop
    return found


def test_a_catalog_is_found_as_by_a_naive_search_in_ten_thousand_texts() -> None:
    draw = random.Random(7)
    letters = "aab \n\t"
    for _ in range(10_000):
        texts = ["".join(draw.choices(letters, k=draw.randint(1, 5))) for _ in range(4)]
        tables = [Table(str(n), t) for n, t in enumerate(texts) if t.strip()]
        text = "".join(draw.choices(letters, k=draw.randint(0, 30)))
        found = CatalogFinder(tables).find(text)
        assert [(h.start, h.stop, h.table.name) for h in found] == find_naively(tables, text)


def test_statements_are_found_wherever_they_stand_in_ten_thousand_texts() -> None:
    draw = random.Random(8)
    statements = [
        ARTIST,
        ALBUM + ";",
        "create  table\ngenre (\n id INT -- a ) here\n)",
        "CREATE TABLE IF NOT EXISTS x.y (a TEXT DEFAULT ')', \"b)\" INT) WITHOUT ROWID;",
        'CREATE TABLE "t ( t" (a NUMERIC(10, 2))\n\n/*\n3 rows from t table:\na\n1\n*/',
    ]
    between = [
        "\n\n",
        " ",
        "\n",
        "Here: ",
        "It's (not) a TABLE; ",
        "How to CREATE TABLE? ",
        "ß\u2028-- ",
    ]
    finder = DdlFinder(deadline_s=None)
    for _ in range(10_000):
        text, expected = "", []
        for _ in range(draw.randint(0, 6)):
            text += draw.choice(between)
            statement = draw.choice(statements)
            expected.append((len(text), len(text) + len(statement)))
            text += statement
        text += draw.choice(between)
        found = [(hit.start, hit.stop) for hit in finder.find(text)]
        assert found == expected, text


def test_statements_of_a_schema_are_found_with_their_references() -> None:
    text = f"Answer from these tables.\n{SQL.split('CREATE VIEW')[0]}\nWho buys most?"
    found = DdlFinder(deadline_s=None).look(text)
    # A comment between two statements ends the run.
    assert [hit.table.name for hit in found.hits] == [
        *("employee", "customer", "invoice", "invoice_line", "opening_hour")
    ]
    assert found.hits[1].table.references == ("employee",)
    assert {each.reason for each in found.unmatched} == {"it stands outside the longest run"}
    assert text[found.hits[0].start :].startswith("CREATE TABLE employee")
    for hit in found.hits:
        assert hit.table.text == text[hit.start : hit.stop] and hit.table.text.endswith(";")


def test_references_are_spelled_as_the_run_does() -> None:
    hits = DdlFinder().look(f"{ALBUM}\n{ARTIST}").hits
    assert [hit.table.references for hit in hits] == [("artist",), ()]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (f"{ARTIST}\n{GENRE}", ["artist", "genre"]),
        (ARTIST, []),
        ("no table", []),
        ("", []),
        (f"{ARTIST}\nand\n{GENRE}", []),
        # The same table twice: the first counts, the second ends the run.
        (f"{ARTIST}\n{GENRE}\n{ARTIST}", ["artist", "genre"]),
        (f"{ARTIST}\n{ARTIST}", []),
        # The longer one of two runs counts.
        (f"{ARTIST}\n{GENRE}\nor\n{ALBUM}\n{ARTIST}", ["album", "artist"]),
        # What cannot be read ends a run.
        (f"{ARTIST}\n{GENRE}\nCREATE TABLE b (,)\n{ALBUM}\n", ["artist", "genre"]),
        (f"{ARTIST}\nCREATE TABLE b (,)\n{ALBUM}\n", []),
        ("CREATE TABLE AS t;\nCREATE TABLE u", []),
    ],
)
def test_a_run_has_two_statements_or_more(text: str, names: list[str]) -> None:
    found = DdlFinder().look(text)
    assert [hit.table.name for hit in found.hits] == names
    assert bool(found.reason) != bool(names)


def test_a_table_of_a_catalog_may_stand_alone_and_in_other_blanks() -> None:
    catalog = Catalog([Table("artist", ARTIST), Table("album", ALBUM, ("artist",))])
    text = f"Tables:\n\n{ALBUM.replace(' ', '  ')}\n\n  CREATE\tTABLE artist\n(id INT, name TEXT) ?"
    found = CatalogFinder(catalog).look(text)
    assert [hit.table for hit in found.hits] == [catalog["album"], catalog["artist"]]
    assert text[found.hits[1].start : found.hits[1].stop].split() == ARTIST.split()
    alone = CatalogFinder(catalog).look(f"x {ARTIST} y {ARTIST}")
    assert [hit.start for hit in alone.hits] == [2]
    assert [each.start for each in alone.unmatched] == [len(ARTIST) + 5]
    nothing = CatalogFinder(catalog).look("nothing")
    assert nothing.hits == () and nothing.reason
    assert CatalogFinder([]).look("nothing").hits == ()


def test_of_columns_that_begin_alike_the_one_that_stands_there_is_found() -> None:
    texts = {
        "artist.name": "ALTER TABLE artist ADD COLUMN name TEXT",
        "artist.name_2": "ALTER TABLE artist ADD COLUMN name TEXT NOT NULL",
        "artist.names": "ALTER TABLE artist ADD COLUMN name TEXTS",
    }
    columns = [Table(name, text, ("artist",)) for name, text in texts.items()]
    catalog = Catalog([Table("artist", ARTIST), *columns])
    for name, text in texts.items():
        found = CatalogFinder(catalog).look(f"Tables:\n\n{ARTIST}\n\n{text}\n\nWho?")
        assert [hit.table.name for hit in found.hits] == ["artist", name]


def test_sample_rows_behind_a_table_of_a_catalog_belong_to_it() -> None:
    catalog = Catalog([Table("artist", ARTIST), Table("album", ALBUM, ("artist",))])
    rows = f"\n\n/*\n1 row from it:\n{ARTIST}\n*/"
    text = f"Tables:\n{ALBUM}{rows}\n\n{ARTIST}\n\n/* none */\n\nWho?"
    hits = CatalogFinder(catalog).look(text).hits
    assert [hit.table.name for hit in hits] == ["album", "artist"]
    assert [text[hit.start : hit.stop] for hit in hits] == [ALBUM + rows, f"{ARTIST}\n\n/* none */"]
    assert hits[0].table.text == ALBUM


def test_of_equal_runs_the_first_is_chosen() -> None:
    a, b = Table("a", "AA"), Table("b", "BB")
    hits = [Hit(0, 2, a), Hit(3, 5, b)]
    assert choose_run("AA-BB", hits) == hits[:1]
    assert choose_run("AA BB", hits) == hits
    assert choose_run("", []) == []


@pytest.mark.parametrize(
    "odd",
    [
        "CREATE TABLE t (a TEXT DEFAULT '\ud800')",
        'CREATE TABLE "\ud800" (a INT)',
        'CREATE TABLE t (a INT REFERENCES "\ud800")',
    ],
)
def test_half_a_character_makes_no_table(odd: str) -> None:
    found = DdlFinder().look(f"{ARTIST}\n{GENRE}\n{odd}")
    assert [hit.table.name for hit in found.hits] == ["artist", "genre"]
    assert [each.reason for each in found.unmatched] == ["it is no table"]


@pytest.mark.parametrize("name", ['""', '" "'])
def test_a_reference_to_no_name_is_none(name: str) -> None:
    found = DdlFinder().look(f"{ARTIST}\nCREATE TABLE t (a INT REFERENCES {name})")
    assert [hit.table.references for hit in found.hits] == [(), ()]


MANY = "".join(f"CREATE TABLE t{i} (a INT);\n" for i in range(10_000))
HOSTILE = {
    "long": f"{ARTIST}\n{GENRE}\n" + "x" * 5_000_000,
    "many": MANY,
    "never closed": "CREATE TABLE a (" * 9_999,
    "comments": "CREATE TABLE a (b INT) /* " * 9_999,
    "quotes": "CREATE TABLE a (b INT DEFAULT '" * 9_999,
    "one that is long": f"{ARTIST}\n{GENRE}\nCREATE TABLE a (" + "b INT, " * 500_000 + "c INT)",
    "unreadable": "".join(f"CREATE TABLE t{i} (,,);\n" for i in range(9_999)),
    "blanks": "CREATE" + " " * 1_000_000,
    "nested": f"CREATE TABLE a (b {'(' * 20_000}{')' * 20_000})\n{ARTIST}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_prompt_passes_with_one_line_in_the_log(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        found = DdlFinder().look(HOSTILE[name])
    assert len(caplog.records) <= 1
    if name == "one that is long":
        assert len(found.hits) == 2
    else:
        assert found.hits == () and found.reason


def test_a_long_prompt_is_not_looked_at_for_a_catalog(caplog: pytest.LogCaptureFixture) -> None:
    found = CatalogFinder([Table("artist", ARTIST)]).look(HOSTILE["long"])
    assert found.hits == () and found.reason and len(caplog.records) == 1


def test_a_prompt_full_of_tables_is_not_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    finder = CatalogFinder([Table("a", "a"), Table("b", "aa")])
    found = finder.look("a" * 60_000)  # at nearly each place both
    assert found.hits == () and found.gave_up and len(caplog.records) == 1
    assert finder.find("a" * 60_000) == []
    assert len(finder.find("a" * 40_000)) == 20_000


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[str]:
    """Each parse takes so long by the clock; returns what was parsed, as it comes."""
    parsed: list[str] = []

    def parse(statement: str, dialects: Sequence[str]) -> Any:
        parsed.append(statement)
        return real(statement, dialects)

    real = find.parse
    monkeypatch.setattr(find, "parse", parse)
    monkeypatch.setattr(time, "perf_counter", lambda: seconds * len(parsed))
    return parsed


def test_what_was_parsed_before_a_deadline_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    finder = DdlFinder(deadline_s=0.05)
    parsed = slow_down(monkeypatch, seconds=0.06)
    assert "too long" in finder.look(f"{ARTIST}\n{GENRE}").reason
    assert parsed == [ARTIST]
    assert len(finder.look(f"{ARTIST}\n{GENRE}").hits) == 2
    assert parsed == [ARTIST, GENRE]


def test_a_statement_that_will_not_be_ready_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = [f"CREATE TABLE t{n} ({'a INT, ' * 1000}b INT)" for n in range(8)]
    finder = DdlFinder(deadline_s=0.08)
    parsed = slow_down(monkeypatch, seconds=0.03)
    assert finder.look("\n".join(wide)).gave_up
    assert parsed == wide[:2]  # the third would end at 0.09 s
    # Shorter ones take less, so they begin.
    del parsed[:]
    assert len(finder.look(f"{wide[0]}\n{wide[2]}\n{ARTIST}\n{GENRE}").hits) == 4


def test_one_that_had_to_wait_for_a_core_does_not_count_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = iter([0.05] + [0.001] * 20)
    now = [0.0]

    def parse(statement: str, dialects: Sequence[str]) -> Any:
        now[0] += next(seconds)
        return real(statement, dialects)

    finder, real = DdlFinder(deadline_s=0.08), find.parse
    monkeypatch.setattr(find, "parse", parse)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    tables = "\n".join(f"CREATE TABLE t{n} (a INT, b TEXT)" for n in range(12))
    assert len(finder.look(tables).hits) == 12
