# SPDX-License-Identifier: Apache-2.0
"""Hooks on the tokenizer manager: text to ids, early refusal, and the reply's report.

Why: dependency data must be checked where an error is still an HTTP 400 of that request
alone, a prompt with a text needs the server's tokenizer, an extra key must not pass for a
tenant's salt, an abort of all requests forgets those whose rows are being settled (an abort of one
does not), a list meant for a batch ends the scheduler where it reaches it for one prompt
(`logprob_start_len: [-1]`, without DepCache too), and what the scheduler says about reuse arrives
as a per-token list that no client expects.
Unnecessary when SGLang lets plugins validate requests and add to a reply's meta info.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from depcache.errors import PromptError
from sglang_patches.http.rejections import counting_rejections
from sglang_patches.http.watched import WATCHED
from sglang_patches.observe.traces import TRACE
from sglang_patches.requests.copies import learn
from sglang_patches.requests.fused import FUSED, judge, note_abort_of_all, settle
from sglang_patches.requests.inbound import ABSENT, DIFFERS, prepare, refuse_lists
from sglang_patches.requests.inner import pass_on
from sglang_patches.requests.outbound import collect
from sglang_patches.requests.params import drop_match, has_dependencies
from sglang_patches.requests.recognition import RECOGNISED, may_hold_context, recognise_text
from sglang_patches.requests.settling import SETTLES
from sglang_patches.requests.size import MAX_SHORT, is_short
from sglang_patches.requests.state import ATTRIBUTE
from sglang_patches.requests.tenants import sealed

BEGAN = "depcache_began_s"  # attribute of a request: when its prompt was about to be read


async def tokenize_dependencies(original: Callable[..., Any], manager: Any, obj: Any) -> Any:
    """Make ids of text, and check all there is, before SGLang tokenizes and checks lengths."""
    await _recognise(obj)
    if not has_dependencies(obj):
        return await original(manager, obj)
    setattr(obj, BEGAN, time.perf_counter())
    with counting_rejections():
        if is_short(obj):
            prepare(obj, manager)
        else:
            # In a thread: a large graph takes a while, and the event loop serves everybody.
            await asyncio.to_thread(prepare, obj, manager)
        await settle(manager, obj)
        try:
            return await original(manager, obj)
        except TypeError as error:  # of a sampling parameter that SGLang does not know
            raise PromptError(f"sampling_params cannot be read: {error}; leave it out") from error


async def tokenize_one_by_one(
    original: Callable[..., Any], manager: Any, batch_size: int, obj: Any
) -> Any:
    """A batch whose texts SGLang would encode together has none where trees stand in it."""
    prompts = [obj[i] for i in range(batch_size)]
    for prompt in prompts:
        await _recognise(prompt)
    if not any(map(has_dependencies, prompts)):
        return await original(manager, batch_size, obj)
    return [await manager._tokenize_one_request(prompt) for prompt in prompts]


async def _recognise(obj: Any) -> None:
    """Look into a plain prompt, where the server is to; into a long text on a thread."""
    with counting_rejections():
        if not may_hold_context(obj):
            return
    if len(obj.text) <= MAX_SHORT:
        recognise_text(obj)
    else:
        await asyncio.to_thread(recognise_text, obj)


def check_last(
    manager: Any, obj: Any, *args: Any, **kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The last stop before the scheduler, on every way through the tokenizer manager."""
    if obj.__class__.__name__ == "GenerateReqInput":
        refuse_lists(obj)
        obj.extra_key = sealed(obj)
        with counting_rejections():
            drop_match(obj)
        pass_on(obj)
    return (manager, obj, *args), kwargs


def abort_settling(
    manager: Any, rid: str = "", abort_all: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An abort of all requests reaches those that the scheduler does not know yet."""
    if abort_all:
        note_abort_of_all(manager)
    return (manager,), {"rid": rid, "abort_all": abort_all}


async def unwrap_report(
    original: Callable[..., Any], manager: Any, obj: Any, *args: Any, **kwargs: Any
) -> AsyncIterator[Any]:
    """Turn `meta_info.depcache` from SGLang's list per token into the one report it holds.

    The report is of the request's first start. How often it was retracted, and so matched anew,
    is known when it ends.
    """
    report = None
    # Gone when the last step arrives.
    state = manager.rid_to_state.get(obj.rid) if hasattr(obj, FUSED) else None
    async for out in original(manager, obj, *args, **kwargs):
        meta_info = out["meta_info"]
        if ATTRIBUTE in meta_info:
            values = meta_info.pop(ATTRIBUTE)
            if report is None:
                report = next((value for value in values or () if value), None)
                if report is not None:
                    learn(obj, report)
                    report["differs"] = getattr(obj, DIFFERS, None)
                    if hasattr(obj, FUSED):
                        report |= getattr(obj, FUSED).report(report["differs"])
                    if hasattr(obj, RECOGNISED):
                        report["recognised"] = getattr(obj, RECOGNISED)
                    if "tables" in report and getattr(obj, ABSENT, None) is not None:
                        report["tables"]["absent_references"] = getattr(obj, ABSENT)
                    trace = report.pop(TRACE, None)
                    if not hasattr(obj, SETTLES):  # its reply is not for the client
                        WATCHED.note(report, trace, getattr(obj, BEGAN, None))
                        collect(report)
        if report is not None:
            report["retractions"] = meta_info.get("num_retractions", 0)
            # A new dict: SGLang keeps a reference to the old one between stream steps.
            out["meta_info"] = {**meta_info, ATTRIBUTE: report}
        ends = meta_info.get("finish_reason")
        if state is not None and ends and ends.get("type") != "abort":
            judge(manager, obj, list(state.output_ids))  # who asks may not come back for more
        yield out


_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
HOOKS = {
    f"{_MANAGER}._tokenize_one_request": ("AROUND", tokenize_dependencies),
    f"{_MANAGER}._batch_tokenize_and_process": ("AROUND", tokenize_one_by_one),
    f"{_MANAGER}._create_tokenized_object": ("BEFORE", check_last),
    f"{_MANAGER}._wait_one_response": ("AROUND", unwrap_report),
    f"{_MANAGER}.abort_request": ("BEFORE", abort_settling),
}
