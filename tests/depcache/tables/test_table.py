# SPDX-License-Identifier: Apache-2.0
"""A table keeps what it is given, and refuses what no prompt could carry."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from depcache.errors import PromptError
from depcache.tables import Table


def test_references_are_a_set_in_order() -> None:
    table = Table("line", "CREATE TABLE line (a INT)", ("track", "invoice", "track"))
    assert table.references == ("invoice", "track")
    assert Table.from_json(table.to_json()) == table
    assert hash(table) == hash(Table.from_json(table.to_json()))


def test_a_table_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Table("a", "A").name = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"name": "a"},
        {"name": "", "text": "A"},
        {"name": 3, "text": "A"},
        {"name": "a", "text": " \n"},
        {"name": "a", "text": "A", "references": "b"},
        {"name": "a", "text": "A", "references": [1]},
        {"name": "a", "text": "A", "references": None},
        {"name": "a", "text": "A", "more": 1},
        {"name": "a", "text": "\ud800"},
    ],
    ids=repr,
)
def test_what_is_no_table_is_one_sentence(data: object) -> None:
    with pytest.raises(PromptError) as caught:
        Table.from_json(data)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
