# SPDX-License-Identifier: Apache-2.0
"""Which tables a prompt holds, by the name of its workload."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from eval.sets import SetError
from eval.tables.prompts import choose, read_form
from eval.tables.sets import SqlSet, read_sql_set
from tests.eval.tables.made import write_set


@pytest.fixture
def data(tmp_path: Path) -> SqlSet:
    write_set(tmp_path, "spider")
    return read_sql_set(tmp_path, "spider")


def tables(data: SqlSet, form: str, number: int, seed: int = 0) -> set[str]:
    chosen = choose(data, data.questions[number], read_form(form), random.Random(seed))
    assert len(set(chosen)) == len(chosen)
    return set(chosen)


def test_forms_hold_the_right_tables_and_what_they_say(data: SqlSet) -> None:
    assert tables(data, "whole:spider", 3) == {"zoo.animals", "zoo.keepers"}
    for seed in range(9):
        linked = tables(data, "linked:spider", 1, seed)
        assert "shop.goods" in linked <= set(data.databases["shop"])
    lake = tables(data, "lake:spider:3", 2)
    assert lake > {"shop.towns", "shop.buyers"} and len(lake) == 3
    assert tables(data, "lake:spider:1", 0) == {"shop.buyers"}


def test_closed_adds_what_the_tables_refer_to(data: SqlSet) -> None:
    assert tables(data, "lake:spider:2:closed", 0) == set(data.databases["shop"])
    assert tables(data, "lake:spider:1:closed", 0) == {"shop.buyers", "shop.towns"}


@pytest.mark.parametrize(
    "name",
    ["whole", "whole:nowhere", "whole:bird:6", "lake:sql", "lake:sql:0", "lake:sql:x", "linked:"],
)
def test_other_names_are_an_error_that_says_what_there_is(name: str) -> None:
    with pytest.raises(SetError, match="use whole:SET, linked:SET or lake:SET:NUMBER"):
        read_form(name)
