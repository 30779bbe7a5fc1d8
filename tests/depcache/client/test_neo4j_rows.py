# SPDX-License-Identifier: Apache-2.0
"""Records become paths where they are paths. The real package runs in `make test-frameworks`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

import depcache
from depcache.client.neo4j_rows import to_row
from depcache.errors import ConfigError


def test_entity_relation_entity_is_a_path() -> None:
    assert to_row(["Ada Lovelace", "BORN_IN", "London"]) == "Ada Lovelace -> BORN_IN -> London"
    assert to_row(["A", "R", "B", "S", 1815]) == "A -> R -> B -> S -> 1815"


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["A"],
        ["A", "R"],
        ["A", "R", "B", "S"],
        ["A", "R", None],
        ["A", "R", ["B"]],
        ["A", "R", True],
        ["A", "", "B"],
        ["A", "R", "two\nlines"],
        ["A", "R", "two\u2028lines"],
    ],
)
def test_other_records_are_none(values: list[Any]) -> None:
    assert to_row(values) is None


def test_rows_are_recognised_as_paths() -> None:
    rows = [to_row(["Ada", "KNOWS", "Charles"]), to_row(["Ada", "BORN_IN", "London"])]
    messages = [{"role": "user", "content": "Context:\n" + "\n".join(map(str, rows)) + "\n\nWho?"}]
    found = depcache.recognise(messages).rows
    assert [row.kind for row in found] == ["relation", "relation"]


@pytest.mark.skipif(find_spec("neo4j_graphrag") is not None, reason="neo4j-graphrag is installed")
def test_it_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="neo4j-graphrag is not installed here"):
        depcache.neo4j_rows({"a": "A", "r": "R", "b": "B"})
