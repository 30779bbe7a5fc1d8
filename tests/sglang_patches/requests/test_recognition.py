# SPDX-License-Identifier: Apache-2.0
"""What the server finds in a plain prompt, and what a request says of being searched.

On real servers: tests/sglang_patches/http/test_recognition.py and test_table_routes.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from depcache.config import Config
from depcache.errors import PromptError
from depcache.prompt.outline import Outline
from depcache.prompt.recompute import Recompute
from depcache.tables import Catalog, Table
from sglang_patches.requests.catalog import CATALOG
from sglang_patches.requests.params import MATCH
from sglang_patches.requests.recognition import (
    RECOGNISED,
    find_context,
    is_on,
    may_hold_context,
    recognise_text,
    set_recognisers,
)

pytest.importorskip("ahocorasick", reason="needs the extra `tables`")

SHOP = Catalog([Table("a", "CREATE TABLE a (x INT)"), Table("b", "CREATE TABLE b (y INT)", ("a",))])
LONE = Catalog([SHOP["a"], Table("c", "CREATE TABLE c (z INT)")])
TABLES = f"Tables:\n\n{SHOP['b'].text}\n\n{SHOP['a'].text}\n\nWho?"
FACTS = "Facts:\nA -> r -> B\nB -> r -> C\n\nWho?"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    SHOP.write(tmp_path / "tables.jsonl")
    yield tmp_path / "tables.jsonl"
    take(Config())


def take(config: Config) -> None:
    set_recognisers(config)
    CATALOG.set(config)


def request(text: Any = TABLES, **params: Any) -> Any:
    sampling = {"custom_params": params or None, "n": 1}
    return SimpleNamespace(text=text, input_ids=None, sampling_params=sampling)


def found_in(obj: Any) -> dict[str, int] | None:
    recognise_text(obj)
    return getattr(obj, RECOGNISED, None)


def test_tables_are_looked_for_first_and_then_facts(file: Path) -> None:
    take(Config(tables=str(file), match_tables=True, recognise="auto"))
    assert found_in(request(TABLES)) == {"tables": 2}
    assert found_in(request(FACTS)) == {"arrows": 2}
    assert found_in(request(f"{FACTS}\n{TABLES}")) == {"tables": 2}
    assert found_in(request("Hello")) is None
    take(Config(tables=str(file), recognise="auto"))
    assert found_in(request(f"{FACTS}\n{TABLES}")) == {"arrows": 2}


def test_what_is_found_becomes_the_requests_outline(file: Path) -> None:
    take(Config(tables=str(file), match_tables=True))
    obj = request(**{MATCH: True, "mine": 1})
    assert found_in(obj) == {"tables": 2}
    assert obj.sampling_params["n"] == 1
    params = obj.sampling_params["custom_params"]
    assert params["mine"] == 1 and MATCH not in params
    outline = Outline.from_json(params["depcache_outline"])
    assert outline.sees == ((1,), ()) and outline.absent == 0 and outline.message is None
    chat = find_context([{"role": "user", "content": TABLES}])
    assert chat is not None and chat[0] == outline.moved(outline.start, 0)


def test_a_share_of_facts_is_computed_again_where_the_setting_says_so(file: Path) -> None:
    take(Config(tables=str(file), match_tables=True, recognise="auto", recompute=0.05))
    facts, tables = request(FACTS), request(TABLES)
    assert found_in(facts) == {"arrows": 2} and found_in(tables) == {"tables": 2}
    params = facts.sampling_params["custom_params"]
    assert params.items() >= Recompute(0.05).to_params().items()
    assert params["depcache_layout"] == "sequential"
    assert "depcache_see" not in tables.sampling_params["custom_params"]
    alone = request(f"Tables:\n\n{SHOP['a'].text}\n\n{LONE['c'].text}\n\nWho?")
    LONE.write(file)
    take(Config(tables=str(file), match_tables=True, recognise="auto", recompute=0.05))
    assert found_in(alone) == {"tables": 2}  # neither sees the other
    assert "depcache_see" not in alone.sampling_params["custom_params"]
    take(Config(recognise="auto"))
    plain = request(FACTS)
    assert found_in(plain) == {"arrows": 2}
    assert "depcache_see" not in plain.sampling_params["custom_params"]


@pytest.mark.parametrize("matches", [True, False])
def test_a_request_says_whether_it_is_searched(file: Path, matches: bool) -> None:
    take(Config(tables=str(file), match_tables=matches))
    assert (found_in(request()) is not None) == matches == is_on()
    assert found_in(request(**{MATCH: True})) == {"tables": 2}
    assert found_in(request(**{MATCH: None, "mine": 1})) == found_in(request())
    take(Config(tables=str(file), match_tables=matches, recognise="auto"))
    for text in (TABLES, FACTS):
        obj = request(text, **{MATCH: False})
        assert found_in(obj) is None and obj.sampling_params["custom_params"] == {MATCH: False}


@pytest.mark.parametrize(
    "obj",
    [
        request(["Hello", TABLES]),
        request(None),
        request(depcache_version=2),
        SimpleNamespace(text=TABLES, input_ids=[1], sampling_params={}),
        SimpleNamespace(text=TABLES, input_ids=None, sampling_params=[{}]),
        SimpleNamespace(text=TABLES, input_ids=None, sampling_params={"custom_params": []}),
    ],
)
def test_what_is_no_plain_prompt_of_one_text_is_not_searched(file: Path, obj: Any) -> None:
    take(Config(tables=str(file), match_tables=True, recognise="auto"))
    assert not may_hold_context(obj) and found_in(obj) is None
    assert may_hold_context(SimpleNamespace(text=TABLES, input_ids=None, sampling_params=None))


def test_a_wrong_word_is_refused_and_a_fault_costs_the_reuse_alone(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    take(Config(tables=str(file), match_tables=True))
    with pytest.raises(PromptError, match="depcache_match is 1"):
        recognise_text(request(**{MATCH: 1}))
    tables = CATALOG.tables()

    def fail(prompt: Any) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(tables, "recognise", fail)
    assert found_in(request()) is None
    assert "recognition failed" in caplog.text
