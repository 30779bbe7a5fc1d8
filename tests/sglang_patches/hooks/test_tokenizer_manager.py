# SPDX-License-Identifier: Apache-2.0
"""The report comes out of SGLang's list per token once, and batches with trees go one by one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from depcache.errors import PromptError
from sglang_patches.hooks.tokenizer_manager import (
    check_last,
    tokenize_dependencies,
    tokenize_one_by_one,
    unwrap_report,
)
from sglang_patches.http.rejections import num_rejected
from sglang_patches.requests.size import MAX_SHORT

pytestmark = pytest.mark.sglang

REPORT = {"shared": 3}
PLAIN: Any = SimpleNamespace(sampling_params={})
TREES: Any = SimpleNamespace(sampling_params={"custom_params": {"depcache_version": 1}})


def unwrapped(*steps: Any) -> list[dict[str, Any]]:
    """`meta_info` of every step; a step is SGLang's list, or None for none."""

    async def original(manager: Any, obj: Any) -> AsyncIterator[Any]:
        for number, values in enumerate(steps):
            meta_info: dict[str, Any] = {"step": number}
            yield {"meta_info": meta_info | ({} if values is None else {"depcache": values})}

    async def run() -> list[dict[str, Any]]:
        return [out["meta_info"] async for out in unwrap_report(original, None, None)]

    return asyncio.run(run())


def test_the_one_report_of_a_list_stands_in_every_step_after_it_came() -> None:
    found = unwrapped([None], [None, REPORT], [None, REPORT, None], [])
    assert [each.get("depcache") for each in found] == [None, REPORT, REPORT, REPORT]
    assert [each["step"] for each in found] == [0, 1, 2, 3]


def test_a_plain_request_has_no_report() -> None:
    assert unwrapped(None, None) == [{"step": 0}, {"step": 1}]


class Manager:
    """Notes what it tokenizes alone."""

    def __init__(self) -> None:
        self.alone: list[Any] = []

    async def _tokenize_one_request(self, obj: Any) -> str:
        self.alone.append(obj)
        return f"alone {len(self.alone)}"


def batch(*prompts: Any) -> tuple[Any, Manager]:
    async def original(manager: Any, batch_size: int, obj: Any) -> str:
        return f"{batch_size} together"

    manager = Manager()
    made = tokenize_one_by_one(original, manager, len(prompts), dict(enumerate(prompts)))
    return asyncio.run(made), manager


def test_a_batch_without_trees_is_tokenized_together() -> None:
    found, manager = batch(PLAIN, PLAIN)
    assert (found, manager.alone) == ("2 together", [])


def test_one_tree_makes_the_whole_batch_go_one_by_one_in_order() -> None:
    found, manager = batch(PLAIN, TREES, PLAIN)
    assert found == ["alone 1", "alone 2", "alone 3"]
    assert manager.alone == [PLAIN, TREES, PLAIN]


def test_a_plain_request_is_passed_on_untouched() -> None:
    async def original(manager: Any, obj: Any) -> Any:
        return obj

    assert asyncio.run(tokenize_dependencies(original, None, PLAIN)) is PLAIN


def test_a_tree_that_cannot_be_read_is_refused_before_sglang_sees_it_and_counted() -> None:
    async def original(manager: Any, obj: Any) -> Any:
        raise AssertionError("SGLang has seen it")

    obj: Any = SimpleNamespace(
        sampling_params={"custom_params": {"depcache_version": 3}}, input_ids=[1], text=None
    )
    manager = SimpleNamespace(context_len=100, num_reserved_tokens=1)
    before = num_rejected()
    with pytest.raises(PromptError):
        asyncio.run(tokenize_dependencies(original, manager, obj))
    assert num_rejected() == before + 1


def test_what_is_no_generation_reaches_the_scheduler_as_it_is() -> None:
    class EmbeddingReqInput:
        def __init__(self) -> None:
            self.extra_key = ["a list"]

    obj = EmbeddingReqInput()
    assert check_last(None, obj, 1, a=2) == ((None, obj, 1), {"a": 2})
    assert obj.extra_key == ["a list"]


@pytest.mark.parametrize(("num_chars", "is_on_thread"), [(1000, False), (MAX_SHORT, True)])
def test_only_a_long_prompt_is_worth_a_thread(
    num_chars: int, is_on_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def prepare(obj: Any, manager: Any) -> None:
        seen.append(threading.current_thread() is not threading.main_thread())

    async def original(manager: Any, obj: Any) -> str:
        return "tokenized"

    monkeypatch.setattr("sglang_patches.hooks.tokenizer_manager.prepare", prepare)
    params = {"depcache_version": 1, "depcache_paths": "[]"}
    asked = SimpleNamespace(
        text="a" * num_chars, input_ids=None, sampling_params={"custom_params": params}
    )
    assert asyncio.run(tokenize_dependencies(original, None, asked)) == "tokenized"
    assert seen == [is_on_thread]
