# SPDX-License-Identifier: Apache-2.0
"""A prompt as a table: long ones are cut, and those without a system have an empty one."""

from __future__ import annotations

import numpy as np
import pytest

from depcache.prompt.forest import Forest
from sglang_patches.http import prompt_table
from sglang_patches.http.prompt_table import describe_prompt
from tests.sglang_patches.http.test_watched import Words


def test_a_prompt_without_a_system_has_an_empty_one() -> None:
    forest = Forest.make(4, 0, [2, 1], [-1, -1])
    sources = np.array([[0, 1, 0, 1], [0, 0, 1, 0]])
    told = describe_prompt([1, 2, 3, 4], forest, "tree", sources, Words())
    assert told["system"]["num_tokens"] == told["system"]["missed"] == 0
    assert [row["cached"] for row in told["table"]] == [1, 1]
    assert [row["text"] for row in told["table"]] == ["1 2", "3"]
    assert [(row["shifted"], row["loaded"]) for row in told["table"]] == [(1, 0), (0, 1)]
    assert not told["table_is_cut"]


def test_a_plain_prompt_is_a_task() -> None:
    forest = Forest.make(2, 0, [], [])
    told = describe_prompt([1, 2], forest, "tree", np.zeros((0, 4), np.int64), Words())
    assert told["table"] == []
    assert told["task"] == {"num_tokens": 2, "text": "1 2"}


def test_what_is_longer_than_the_bounds_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_table, "MAX_TABLE_ROWS", 1)
    monkeypatch.setattr(prompt_table, "MAX_SHOWN_TOKENS", 2)
    forest = Forest.make(8, 3, [1, 1], [-1, 0])
    sources = np.array([[3, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]])
    told = describe_prompt(list(range(8)), forest, "tree", sources, Words())
    assert told["table_is_cut"] and len(told["table"]) == 1
    assert told["system"]["text"] == "0 1…" and told["system"]["shared"] == 3
    assert told["task"] == {"num_tokens": 3, "text": "5 6…"}
