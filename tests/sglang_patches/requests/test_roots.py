# SPDX-License-Identifier: Apache-2.0
"""Roots by tokens: they are what the cache has on its ways, whichever form a request has."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import depcache
from depcache.config import load_config
from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.outline import Outline
from depcache.prompt.roots import root_keys

pytestmark = pytest.mark.sglang

PATHS = [("Ada", "knows", "Bob"), ("Ada", "lives in", "Rome"), ("Cid", "knows", "Ada")]


@pytest.fixture(autouse=True)
def publishing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from sglang_patches.requests.roots import set_roots

    monkeypatch.setenv("DEPCACHE_ROOT_EVENTS", "tcp://127.0.0.1:5557")
    set_roots(load_config())
    yield
    monkeypatch.delenv("DEPCACHE_ROOT_EVENTS")
    set_roots(load_config())


@pytest.fixture(scope="module")
def tokenizer(model_path: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_path("llama_gqa"))


def obj_of(text: str, params: dict[str, Any], **fields: Any) -> Any:
    """As SGLang's GenerateReqInput."""
    given = {"extra_key": None, "lora_path": None, "input_ids": None, "cache_salt": None} | fields
    return SimpleNamespace(text=text, sampling_params={"custom_params": params}, **given)


def ways_of(prompt: DepPrompt) -> list[list[int]]:
    """The tokens from the beginning to the end of each segment."""
    forest, tokens = prompt.forest, prompt.tokens.tolist()
    stops = [*forest.starts[1:], forest.task_start]
    ways: list[list[int]] = []
    for start, stop, parent in zip(forest.starts, stops, forest.parents, strict=True):
        above = ways[parent] if parent >= 0 else tokens[: forest.system_len]
        ways.append([*above, *tokens[start:stop]])
    return ways


@pytest.mark.parametrize("recompute", [None, 0.1])
def test_a_root_is_on_the_way_to_its_rows(tokenizer: Any, recompute: float | None) -> None:
    from sglang_patches.requests.roots import ROOTS, note_roots

    rendered = depcache.render(PATHS, "Who?", recompute=recompute)
    text = "".join(message["content"] for message in rendered.messages)
    params = rendered.params_in(text)
    outline = Outline.from_json(params["depcache_outline"])
    prompt = DepPrompt.from_outline(text, outline, tokenizer=tokenizer)
    obj = obj_of(text, params)
    note_roots(obj, text, outline, tokenizer, add_special_tokens=False)
    told = getattr(obj, ROOTS)
    assert [key for key, _ in told["roots"]] == list(
        root_keys({"text": text, "sampling_params": obj.sampling_params})
    )
    ways = ways_of(prompt)
    for _, ids in told["roots"]:
        root = [*told["system"], *ids]
        assert any(way[: len(root)] == root for way in ways)
    assert [tokenizer.decode(ids).strip() for _, ids in told["roots"]] == ["Ada", "Cid"]


def test_ids_are_told_as_they_are() -> None:
    from sglang_patches.requests.roots import ROOTS, note_roots_of_ids

    params = {
        "depcache_system_len": 2,
        "depcache_segment_lens": [2, 1, 2],
        "depcache_segment_parents": [-1, 0, -1],
    }
    obj = obj_of("", params, input_ids=list(range(8)))
    note_roots_of_ids(obj)
    told = getattr(obj, ROOTS)
    assert told["system"] == [0, 1] and [ids for _, ids in told["roots"]] == [[2, 3], [5, 6]]


def test_a_chat_is_read_as_its_client_reads_it() -> None:
    from sglang_patches.requests.roots import keys_of_chat

    rendered = depcache.render(PATHS, "Who?")
    body = {"messages": rendered.messages, "cache_salt": "alice", **rendered.extra_body}
    request = SimpleNamespace(
        custom_params=body["custom_params"], model="base:adapter", cache_salt="alice"
    )
    expected = root_keys({**body, "model": "base:adapter"})
    assert keys_of_chat(request, rendered.messages) == expected and len(expected) == 2


def test_nothing_is_read_where_nobody_listens(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_patches.requests.roots import ROOTS, keys_of_chat, note_roots, set_roots

    monkeypatch.setenv("DEPCACHE_ROOT_EVENTS", "")
    set_roots(load_config())
    assert keys_of_chat(None, []) == {}
    obj = obj_of("", {})
    note_roots(obj, "", Outline(0, (1,), (1,)), tokenizer, add_special_tokens=False)
    assert not hasattr(obj, ROOTS)
