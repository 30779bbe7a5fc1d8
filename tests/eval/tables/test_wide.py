# SPDX-License-Identifier: Apache-2.0
"""Prompts with some columns of each table, counted by hand on a small set."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import pytest

from depcache.tables.declaration import Column, Declaration, ForeignKey
from eval.tables import wide
from eval.tables.sets import SqlQuestion, declarations_of, read_sql_set
from eval.tables.wide import SYSTEMS, WideTable, choose_columns, columns_of, simulate_wide

ORDERS = Declaration(
    "",
    "orders",
    (Column("id", "INT"), Column("buyer", "INT"), Column("price", "REAL"), Column("Place", "TEXT")),
    ("id",),
    (ForeignKey(("buyer",), "", "buyers", ("id",)),),
)


def test_a_table_is_its_keys_and_other_columns_beside_them() -> None:
    table = WideTable.make(ORDERS, len)
    assert list(table.columns) == ["price", "Place"]
    assert table.columns["price"] == len("    price REAL,\n")
    whole = wide._FORM.write(ORDERS)
    assert table.count(frozenset(table.columns)) == len(whole)
    assert table.count(frozenset()) == table.head < len(whole)
    assert table.rows["price"] == len("ALTER TABLE orders ADD COLUMN price REAL")


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT T1.price FROM orders AS T1 WHERE place = 'x'", {"price", "Place"}),
        ("SELECT count(*) FROM orders", set()),
        ("SELECT FROM WHERE (", set()),
        ("", set()),
    ],
)
def test_the_right_columns_are_those_that_the_query_names(
    sql: str, found: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = SqlQuestion("?", "shop", ("shop.orders",))
    monkeypatch.setattr(wide, "NUM_EXTRA", (0,))
    table = WideTable.make(ORDERS, len)
    assert choose_columns(table, columns_of(sql), question, random.Random(0)) == found


def test_a_linker_gives_the_right_columns_and_the_likeliest_others() -> None:
    table = WideTable.make(ORDERS, len)
    question = SqlQuestion("Which place is it?", "shop", ("shop.orders",))
    chosen = [
        choose_columns(table, frozenset({"price"}), question, random.Random(i)) for i in range(20)
    ]
    assert set(chosen) == {frozenset({"price"}), frozenset({"price", "Place"})}
    chosen = [choose_columns(table, frozenset(), question, random.Random(i)) for i in range(20)]
    assert frozenset({"Place"}) in chosen and frozenset({"price"}) not in chosen


def test_each_column_is_computed_once_where_it_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [{"name": f"c{i}", "label": f"c{i}", "type": "text", "pk": i == 0} for i in range(30)]
    tables = [
        {"name": "many", "label": "many", "columns": columns},
        {"name": "few", "label": "few", "columns": columns[:3]},
    ]
    schema = {"db_id": "db", "tables": tables, "foreign_keys": [["few.c1", "many.c0"]]}
    questions = [
        {
            "db_id": "db",
            "question": f"Which are number {i}?",
            "gold_tables": ["many", "few"] if i % 2 else ["few"],
            "sql": f"SELECT c{i} FROM many JOIN few",
        }
        for i in range(20)
    ]
    for kind, rows in (("schemas", [schema]), ("questions", questions)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"bird_{kind}.jsonl").write_text(text)
    monkeypatch.setattr(wide, "WORKLOADS", ("linked:bird",))
    monkeypatch.setattr(wide, "NUM_EXTRA", (0,))
    monkeypatch.setattr("eval.tables.prompts.NUM_EXTRA", (0,))
    every, only_wide = simulate_wide(partial(read_sql_set, tmp_path), len, quick=True)
    assert (every["prompts"], only_wide["prompts"]) == (20, 10)
    assert every["context"]["some"] < every["context"]["whole"] / 2
    assert every["context"]["some"] < every["context"]["columns"]
    computed = every["computed"]
    assert tuple(computed) == SYSTEMS
    few, many = (WideTable.make(each, len) for each in reversed(declarations_of(schema)))
    # `many` once, and `few` alone and behind it.
    whole = few.count(frozenset(few.columns)), many.count(frozenset(many.columns))
    assert computed["whole, references"] == pytest.approx((2 * whole[0] + whole[1]) / 20, abs=0.1)
    # Each time another column of `many`, so another table, and `few` sees another one.
    asked = [f"c{i}" for i in range(1, 20, 2)]
    assert computed["some, references"] > 10 * (many.head + few.head) / 20
    once = many.head + sum(many.rows[name] for name in asked)
    once += 2 * few.head + sum(few.rows.values())  # c2 alone; c1 is a key
    assert computed["columns"] == pytest.approx(once / 20, abs=0.1)
