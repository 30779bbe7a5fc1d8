# SPDX-License-Identifier: Apache-2.0
"""Statements end where SQL ends them: not in strings, comments, functions or copied rows."""

from __future__ import annotations

import pytest

from depcache.tables.statements import StatementFinder, TooMuchError, begins_of, split


@pytest.mark.parametrize(
    "between",
    [
        "';'",
        '";"',
        "`;`",
        "[;]",
        "-- ; CREATE TABLE x (\n",
        "/* ; CREATE TABLE x ( */",
        "$$ ; CREATE TABLE x ( $$",
        "$a$ ; $$ ; $a$",
    ],
)
def test_nothing_in_quotes_and_comments_ends_a_statement(between: str) -> None:
    text = f"SELECT 1; CREATE TABLE a ({between}) ; SELECT 2;\nALTER TABLE a ADD b INT"
    assert [(text[start:], part) for start, part in split(text)] == [
        (text[10:], f"CREATE TABLE a ({between}) "),
        ("ALTER TABLE a ADD b INT", "ALTER TABLE a ADD b INT"),
    ]


def test_a_statement_ends_where_another_begins() -> None:
    text = "CREATE TABLE a (b INT)\nCREATE TABLE c (d\nGO\nnothing\nCREATE VIEW v AS SELECT 1"
    assert [part.strip() for _, part in split(text)] == [
        "CREATE TABLE a (b INT)",
        "CREATE TABLE c (d",
        "CREATE VIEW v AS SELECT 1",
    ]


@pytest.mark.parametrize("before", ["", "İ ", "ß", " x.", "CREATE ", "CREATE TEMP "])
def test_statements_begin_in_any_case_and_not_inside_a_word(before: str) -> None:
    text = f"{before} Create  or\nReplace TABLE a; recreate table b; CREATE TABLES"
    assert list(begins_of(text)) == [len(before) + 1]


@pytest.mark.parametrize(
    ("behind", "taken"),
    [
        ("", ""),
        (" ; more", " ;"),
        (" WITHOUT ROWID, STRICT;", " WITHOUT ROWID, STRICT;"),
        (" ENGINE=InnoDB DEFAULT CHARSET=utf8;", " ENGINE=InnoDB DEFAULT CHARSET=utf8;"),
        ("\n/* 3 rows */\nmore", "\n/* 3 rows */"),
        ("\n/* 3 rows", ""),
        (
            "\n\n/*\nColumn Comments: {}\n*/\n\n/*\n3 rows\n*/ x */",
            "\n\n/*\nColumn Comments: {}\n*/\n\n/*\n3 rows\n*/",
        ),
        ("/*/ no end", ""),
        ("/* a *//*/ no end", "/* a */"),
        ("/* a *//*/ b */", "/* a *//*/ b */"),
        (" COMMENT='it; is' ;", " COMMENT='it; is' ;"),
        ("COMMENT='it''s' CHECKSUM=1, a=1", "COMMENT='it''s' CHECKSUM=1,"),
        (" COMMENT='it''s", ""),
        ("\n INHERITS (b)\n\nmore", "\n INHERITS (b)"),
        (" PARTITION BY RANGE (b) TABLESPACE fast;", " PARTITION BY RANGE (b) TABLESPACE fast;"),
        (" WITH (fillfactor=70) with more", " WITH (fillfactor=70)"),
        (" is a table; it has", ""),
    ],
)
def test_options_and_sample_rows_belong_to_a_statement(behind: str, taken: str) -> None:
    body = "CREATE TABLE a (b INT DEFAULT (1))"
    ends = StatementFinder(body + behind, 10_000).ends_of(0)
    assert ends == (len(body), len(body) + len(taken))


@pytest.mark.parametrize(
    "text", ["CREATE TABLE a", "CREATE TABLE a (b", "CREATE TABLE a);", "a;()"]
)
def test_what_does_not_end_is_none(text: str) -> None:
    assert StatementFinder(text, 1000).ends_of(0) is None


def test_no_more_is_looked_at_than_was_allowed() -> None:
    finder = StatementFinder("CREATE TABLE a (" * 100, 5000)
    with pytest.raises(TooMuchError):
        [finder.ends_of(0) for _ in range(5)]
