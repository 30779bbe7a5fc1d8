# SPDX-License-Identifier: Apache-2.0
"""The question goes behind the facts in the place where cognee fills its template in.

cognee itself is not installed with the tests: `make test-frameworks` runs the real one.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

import depcache
from depcache.client.cognee_prompt import MODULE, TEMPLATE, put_question_last


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = ModuleType(MODULE)
    made.render_prompt = lambda filename, context, base=None: f"{filename} of {base}: {context}"
    name = ""
    for part in MODULE.split("."):
        name = f"{name}.{part}".strip(".")
        monkeypatch.setitem(sys.modules, name, made if name == MODULE else ModuleType(name))
    return made


def test_its_graph_prompt_has_the_facts_first_and_they_are_found(module: Any) -> None:
    put_question_last()
    put_question_last()
    facts = "Ada --[born_in]--> London\nLondon --[lies_on]--> Thames"
    text = module.render_prompt(TEMPLATE, {"question": "Where?", "context": facts})
    assert text.index(facts) < text.index("Where?")
    found = depcache.recognise(text)
    assert len(found.rows) >= 2
    assert found.outline is not None
    assert "Where?" not in text[: found.outline.stop]


def test_its_other_prompts_are_as_they_were(module: Any) -> None:
    before = module.render_prompt("other.txt", {"a": 1}, "folder")
    put_question_last()
    assert module.render_prompt("other.txt", {"a": 1}, "folder") == before


def test_without_cognee_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", ModuleType("litellm"))
    monkeypatch.setitem(sys.modules, MODULE, None)
    with pytest.raises(depcache.ConfigError, match="cognee is not installed here"):
        depcache.install("cognee")
