# SPDX-License-Identifier: Apache-2.0
"""The paper's two calls on an `sglang.Engine` (DepCache, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from depcache.errors import PromptError, ServerError
from depcache.prompt.dep_prompt import DepPrompt

pytestmark = pytest.mark.sglang

PATHS = [["Ada", "wrote", "Notes"], ["Ada", "born in", "London", "capital of", "England"]]


@pytest.fixture(scope="module")
def running(model_path: Callable[[str], Path]) -> Iterator[Any]:
    from tests.helpers.engine import start_engine

    with start_engine(model_path("llama_gqa")) as engine:
        yield engine


@pytest.fixture
def prompt(running: Any) -> DepPrompt:
    return DepPrompt.from_paths(
        PATHS,
        tokenizer=running.engine.tokenizer_manager.tokenizer,
        system="Facts:",
        task="\nQuestion: who?",
    )


def test_depkv_is_computed_once_and_generated_from(running: Any, prompt: DepPrompt) -> None:
    from sglang_patches.engine import compute_depkv, generate_with_depkv

    kv = compute_depkv(running.engine, prompt)
    assert kv.report["missed"] == prompt.forest.task_start
    again = compute_depkv(running.engine, prompt)
    assert again.report["missed"] == 0
    result = generate_with_depkv(running.engine, kv, {"max_new_tokens": 4, "temperature": 0})
    assert len(result["output_ids"]) == 4
    assert result["meta_info"]["depcache"]["shared"] == prompt.forest.task_start


def test_a_prompt_with_a_foreign_token_is_refused(running: Any, prompt: DepPrompt) -> None:
    from sglang_patches.engine import compute_depkv

    ids, params = prompt.to_wire()
    foreign = DepPrompt.from_wire([*ids[:-1], 10**6], params)
    with pytest.raises(ValueError, match="vocabulary"):
        compute_depkv(running.engine, foreign)
    with pytest.raises(PromptError):
        DepPrompt.from_wire(ids[: prompt.forest.task_start], params)


def test_an_engine_without_depcache_is_named(prompt: DepPrompt) -> None:
    from sglang_patches.engine import compute_depkv

    class Stock:
        def generate(self, **_: Any) -> dict[str, Any]:
            return {"text": "", "meta_info": {}}

    with pytest.raises(ServerError, match="radix_cache_backend"):
        compute_depkv(Stock(), prompt)
