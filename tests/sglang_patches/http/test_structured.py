# SPDX-License-Identifier: Apache-2.0
"""Dependency data beside JSON schemas and tools: the grammar is kept to, and facts are reused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sglang_patches.http.test_routes import assert_cold_then_warm, chat, fresh_paths

pytestmark = pytest.mark.sglang

CITIES = ["Warsaw", "Paris"]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": CITIES}},
    "required": ["city"],
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
CHOICES = ["required", {"type": "function", "function": {"name": "weather"}}]


def ask_twice(served: Any, **fields: Any) -> list[str]:
    """The answers to a cold and a warm request with the same facts."""
    body = chat(fresh_paths(), **{"max_tokens": 64, **fields})
    replies = [served.post("/v1/chat/completions", body).json() for _ in range(2)]
    assert_cold_then_warm(*(reply["metadata"]["depcache"] for reply in replies))
    return [reply["choices"][0]["message"]["content"] for reply in replies]


def test_an_answer_keeps_to_a_json_schema(served) -> None:
    cold, warm = ask_twice(served, response_format=FORMAT)
    assert json.loads(cold)["city"] in CITIES
    assert warm == cold


@pytest.mark.parametrize("choice", CHOICES, ids=["required", "named"])
def test_a_tool_that_must_be_called_is_called(served, choice: Any) -> None:
    # Without --tool-call-parser SGLang leaves the call in the content.
    # A model with random weights may call again and again: the first call is read, whole.
    cold, warm = ask_twice(served, tools=[TOOL], tool_choice=choice, max_tokens=160)
    assert cold.startswith("[")
    call, _ = json.JSONDecoder().raw_decode(cold[1:].lstrip())
    assert call["name"] == "weather" and call["parameters"]["city"] in CITIES
    assert warm == cold


def test_tools_that_need_not_be_called_change_nothing(served) -> None:
    cold, warm = ask_twice(served, tools=[TOOL], max_tokens=8)
    assert warm == cold
