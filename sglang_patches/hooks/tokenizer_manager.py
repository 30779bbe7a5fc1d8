# SPDX-License-Identifier: Apache-2.0
"""Hooks on the tokenizer manager: text form to ids, early refusal, and the reply's report.

Why: dependency data must be checked where an error is still an HTTP 400 of that request
alone, a prompt in text form needs the server's tokenizer, and what the scheduler says about
reuse arrives as a per-token list that no client expects.
Unnecessary when SGLang lets plugins validate requests and add to a reply's meta info.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from sglang_patches.inbound import convert_text, has_dependencies, validate_ids
from sglang_patches.outbound import collect
from sglang_patches.rejections import counting_rejections
from sglang_patches.request_state import ATTRIBUTE


async def tokenize_dependencies(original: Callable[..., Any], manager: Any, obj: Any) -> Any:
    """Before SGLang tokenizes and checks lengths: replace text form by ids."""
    if has_dependencies(obj):
        # In a thread: a large graph takes a while, and the event loop serves everybody.
        with counting_rejections():
            await asyncio.to_thread(convert_text, obj, manager.tokenizer)
    return await original(manager, obj)


def check_dependencies(
    manager: Any,
    obj: Any,
    input_text: Any,
    input_ids: Any,
    *args: Any,
    **kwargs: Any,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The last stop before the scheduler, on every way through the tokenizer manager."""
    if obj.__class__.__name__ == "GenerateReqInput":
        with counting_rejections():
            if convert_text(obj, manager.tokenizer):  # a batch that was tokenized as a whole
                input_ids = obj.input_ids
            validate_ids(obj, input_ids, manager.model_config)
    return (manager, obj, input_text, input_ids, *args), kwargs


async def unwrap_report(
    original: Callable[..., Any], manager: Any, obj: Any, *args: Any, **kwargs: Any
) -> AsyncIterator[Any]:
    """Turn `meta_info.depcache` from SGLang's list per token into the one report it holds."""
    report = None
    async for out in original(manager, obj, *args, **kwargs):
        meta_info = out["meta_info"]
        if ATTRIBUTE in meta_info:
            values = meta_info.pop(ATTRIBUTE)
            if report is None:
                report = next((value for value in values or () if value), None)
                if report is not None:
                    collect(report)
        if report is not None:
            # A new dict: SGLang keeps a reference to the old one between stream steps.
            out["meta_info"] = {**meta_info, ATTRIBUTE: report}
        yield out


_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
HOOKS = {
    f"{_MANAGER}._tokenize_one_request": ("AROUND", tokenize_dependencies),
    f"{_MANAGER}._create_tokenized_object": ("BEFORE", check_dependencies),
    f"{_MANAGER}._wait_one_response": ("AROUND", unwrap_report),
}
