# SPDX-License-Identifier: Apache-2.0
"""Two queries are told apart by what they select, and nothing but selecting is done."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from depcache.tables.declaration import Column, Declaration, ForeignKey
from eval.tables.execution import NUM_ROWS, Database, is_same_query, join_conditions, select_alike
from models.tiny.schemas import make_schema, schema_of
from models.tiny.sql_questions import make_questions

WARDS = Declaration("", "ward", (Column("id", "INT"), Column("name", "TEXT")), ("id",))
DOCTORS = Declaration(
    "",
    "doctor",
    (Column("id", "INT"), Column("name", "TEXT"), Column("ward", "INT"), Column("chief", "INT")),
    ("id",),
    (
        ForeignKey(("ward",), "", "ward", ("id",)),
        ForeignKey(("chief",), "", "ward", ("id",)),
    ),
)
GOLD = "SELECT doctor.name FROM doctor JOIN ward ON doctor.ward = ward.id"


@pytest.fixture
def databases() -> Iterator[list[Database]]:
    found = [Database(schema_of([WARDS, DOCTORS]), seed) for seed in (1, 2)]
    yield found
    for each in found:
        each.close()


@pytest.mark.parametrize(
    "sql",
    [
        GOLD,
        "select d.name from ward w join doctor d on w.id = d.ward",
        "SELECT name FROM doctor",
        "SELECT doctor.name FROM doctor, ward WHERE ward.id = doctor.ward",
    ],
)
def test_the_same_rows_in_other_words(databases: list[Database], sql: str) -> None:
    assert select_alike(databases, sql, GOLD)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT ward.name FROM doctor JOIN ward ON doctor.ward = ward.id",
        "SELECT doctor.name FROM doctor JOIN ward ON doctor.id = ward.id",
        "SELECT doctor.name FROM doctor JOIN ward",
        "SELECT doctor.name, ward.name FROM doctor JOIN ward ON doctor.ward = ward.id",
        "SELECT nurse.name FROM nurse",
        "SELECT",
        "",
        "\0",
        f"{GOLD}; {GOLD}",
    ],
)
def test_other_rows_or_none(databases: list[Database], sql: str) -> None:
    assert not select_alike(databases, sql, GOLD)


def test_a_key_in_the_wrong_role_is_seen(databases: list[Database]) -> None:
    gold = "SELECT ward.name FROM doctor JOIN ward ON doctor.ward = ward.id"
    assert not select_alike(databases, gold.replace("doctor.ward", "doctor.chief"), gold)


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE ward",
        "DELETE FROM ward",
        "INSERT INTO ward VALUES (1, 'x')",
        "PRAGMA query_only",
        "ATTACH 'x.db' AS x",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT * FROM n",
        "SELECT 1 FROM " + ", ".join(f"ward w{i}" for i in range(12)),
    ],
)
def test_nothing_else_is_done_and_nothing_goes_on_for_ever(
    databases: list[Database], sql: str
) -> None:
    assert databases[0].select(sql) is None
    assert len(databases[0].select("SELECT * FROM ward") or ()) == NUM_ROWS


def test_queries_are_read_past_their_spelling() -> None:
    assert is_same_query("select  doctor.NAME\nfrom Doctor", 'SELECT "doctor".name FROM doctor')
    assert not is_same_query("SELECT name FROM doctor", "SELECT doctor.name FROM doctor")
    assert not is_same_query("SELECT FROM WHERE (", "SELECT FROM WHERE (")
    assert not is_same_query("", "")


@pytest.mark.parametrize(
    "sql",
    [
        GOLD,
        "select d.name from ward w join doctor d on w.id = d.ward where d.id = 3",
        'SELECT 1 FROM "Doctor" AS ward2, ward WHERE ward.ID = ward2.ward AND ward.name = 1',
    ],
)
def test_the_same_joins_in_other_words(sql: str) -> None:
    assert join_conditions(sql) == {frozenset({"doctor.ward", "ward.id"})}


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT doctor.name FROM doctor JOIN ward ON doctor.id = ward.id", 1),
        (f"{GOLD} JOIN ward w ON doctor.chief = w.id", 2),
        ("SELECT name FROM doctor JOIN ward ON ward = id", 1),
        ("SELECT doctor.name FROM doctor WHERE doctor.ward = 1", 0),
    ],
)
def test_other_joins(sql: str, found: int) -> None:
    conditions = join_conditions(sql)
    assert conditions is not None and len(conditions) == found
    assert conditions != join_conditions(GOLD)


def test_what_is_no_query_has_no_joins() -> None:
    assert join_conditions("SELECT FROM WHERE (") is None
    assert join_conditions(f"{GOLD}; {GOLD}") is None


def test_every_question_of_a_made_up_schema_is_told_from_the_others() -> None:
    """Else a wrong answer would count as right."""
    alike = pairs = 0
    for seed in range(12):
        rng = random.Random(seed)
        schema = make_schema(rng, 7)
        databases = [Database(schema, number) for number in (1, 2)]
        asked = make_questions(rng, schema, 8, databases[0].values(rng))
        golds = [each.sql for each in asked if databases[0].select(each.sql)]
        for gold in golds:
            assert select_alike(databases, gold, gold)
        others = [(a, b) for a in golds for b in golds if not is_same_query(a, b)]
        pairs += len(others)
        alike += sum(select_alike(databases, a, b) for a, b in others)
    assert pairs > 200 and alike / pairs < 0.01
