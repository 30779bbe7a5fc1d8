# SPDX-License-Identifier: Apache-2.0
"""Tokens of a small stream, counted by hand, and what always holds between the systems."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from eval.tables.prompts import choose, read_form
from eval.tables.sets import SqlSet, read_sql_set
from eval.tables.simulate import count, describe
from tests.eval.tables.made import write_set

ORDERS, GOODS, BUYERS, TOWNS = (f"shop.{name}" for name in ("orders", "goods", "buyers", "towns"))
LENS = {ORDERS: 1000, GOODS: 100, BUYERS: 10, TOWNS: 1, "zoo.animals": 7, "zoo.keepers": 7}


@pytest.fixture
def data(tmp_path: Path) -> SqlSet:
    write_set(tmp_path, "spider")
    return read_sql_set(tmp_path, "spider")


def test_a_small_stream_counted_by_hand(data: SqlSet) -> None:
    prompts = [(ORDERS, GOODS), (GOODS, BUYERS), (ORDERS, BUYERS), (BUYERS, GOODS)]
    found = count(data, prompts, LENS, random.Random(0))
    assert found["context"] == 1100 + 110 + 1010 + 110
    # Declared: orders goods | goods buyers | orders, which is cached, buyers | goods buyers again.
    assert found["declared"] == 1100 + 110 + 10
    # Asked three times: buyers, goods; twice: orders, behind goods and then behind buyers.
    assert found["most asked"] == 1100 + 110 + 1000
    assert found["alone"] == 1110
    # In topological order goods, towns, buyers, orders; the first prompt has all of them computed.
    assert found["component"] == 1111
    # Orders behind goods, then behind buyers; buyers behind goods, then behind nothing.
    assert found["chain"] == 1000 + 100 + 10 + 1000 + 10
    # Orders with goods, then with buyers; buyers without towns both times.
    assert found["references"] == 1000 + 100 + 10 + 1000
    # Neither set of orders is all or nothing; the others are.
    assert found["references ahead"] == 2000
    assert found["ahead"] == 0
    assert describe(data, prompts) == {
        "tables": 2.0,
        "distinct_sets": 3,
        "variants": pytest.approx((2 + 1 + 1) / 3),
        "most_variants": 2,
    }


def test_the_random_order_depends_on_the_seed_alone(data: SqlSet) -> None:
    prompts = [tuple(LENS)] * 3
    found = {count(data, prompts, LENS, random.Random(seed))["as they come"] for seed in range(5)}
    assert len(found) > 1
    assert count(data, prompts, LENS, random.Random(1)) == count(
        data, prompts, LENS, random.Random(1)
    )


@pytest.mark.parametrize("form", ["whole:spider", "linked:spider", "lake:spider:4"])
def test_what_is_seen_less_is_computed_less(data: SqlSet, form: str) -> None:
    rng = random.Random(2)
    asked = [rng.choice(data.questions) for _ in range(40)]
    prompts = [choose(data, question, read_form(form), rng) for question in asked]
    found = count(data, prompts, LENS, rng)
    assert found["alone"] <= found["component"] <= sum(LENS.values())
    assert found["alone"] <= found["references"] <= found["chain"] <= found["context"]
    assert found["references ahead"] <= found["references"]


def test_closed_prompts_have_one_variant_of_each_table(data: SqlSet) -> None:
    form, rng = read_form("lake:spider:2:closed"), random.Random(0)
    prompts = [choose(data, question, form, rng) for question in [*data.questions] * 3]
    found = count(data, prompts, LENS, rng)
    assert found["alone"] == found["references"] > 0 == found["references ahead"]
    assert describe(data, prompts)["most_variants"] == 1
