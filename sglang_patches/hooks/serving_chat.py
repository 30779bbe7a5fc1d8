# SPDX-License-Identifier: Apache-2.0
"""Hooks on the chat route: text form through the chat template, and the report in the reply.

Why: SGLang renders and encodes a chat in one function, so that the text between the two,
in which the facts stand, is seen by nobody else; and replies have fixed fields.
Unnecessary when the chat route hands its text to the tokenizer manager, as /generate does,
and when replies carry unknown `meta_info` through.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

from depcache.prompt.wire import PREFIX, WireIds, WireText, parse_wire
from sglang_patches.inbound import require_ids, text_to_ids
from sglang_patches.outbound import add_to_reply, add_to_stream
from sglang_patches.rejections import counting_rejections

_recorded: ContextVar[list[tuple[str, list[int]]] | None] = ContextVar(
    "depcache_rendered_chat", default=None
)


def convert_chat(
    original: Callable[..., Any], serving: Any, request: Any, *args: Any, **kwargs: Any
) -> Any:
    """Render as ever; for text form then tokenize the rendered text as a dependency prompt."""
    with counting_rejections():
        wire = parse_wire(request.custom_params) if request.custom_params else None
        if isinstance(wire, WireIds):
            require_ids(request.input_ids)
    if not isinstance(wire, WireText) or request.input_ids is not None:
        return original(serving, request, *args, **kwargs)
    tokenizer = serving.tokenizer_manager.tokenizer
    _record_encode(tokenizer)
    token = _recorded.set([])
    try:
        processed = original(serving, request, *args, **kwargs)
        recorded = _recorded.get() or []
    finally:
        _recorded.reset(token)
    rendered = processed.prompt_ids
    if isinstance(rendered, list):
        # The template's text is the one whose ids begin the prompt; what SGLang appended to
        # them (the beginning of an answer to be continued) goes behind the task.
        text, ids = next(
            (text, ids) for text, ids in reversed(recorded) if rendered[: len(ids)] == ids
        )
        suffix = rendered[len(ids) :]
    else:
        text, suffix = rendered or processed.prompt, []
    with counting_rejections():
        input_ids, params = text_to_ids(text, wire, tokenizer, add_special_tokens=False)
    others = {k: v for k, v in request.custom_params.items() if not k.startswith(PREFIX)}
    request.custom_params = {**others, **params}
    processed.prompt_ids = input_ids + suffix
    return processed


def _record_encode(tokenizer: Any) -> None:
    """Let `tokenizer.encode` remember what it encoded while a chat is being converted."""
    if getattr(tokenizer, "_depcache_records", False):
        return
    encode = tokenizer.encode

    def recording_encode(text: Any, *args: Any, **kwargs: Any) -> Any:
        ids = encode(text, *args, **kwargs)
        recorded = _recorded.get()
        if recorded is not None and isinstance(text, str):
            recorded.append((text, list(ids)))
        return ids

    tokenizer.encode = recording_encode
    tokenizer._depcache_records = True


def report_in_reply(
    response: Any, serving: Any, request: Any, results: list[dict[str, Any]], *args: Any
) -> None:
    """Add the report to a finished reply."""
    # The choices of one prompt follow each other and were prefilled once.
    add_to_reply(response, results[:: request.n or 1])


def report_in_stream(
    original: Callable[..., AsyncIterator[str]], serving: Any, *args: Any, **kwargs: Any
) -> AsyncIterator[str]:
    """Add the report to the end of a stream."""
    return add_to_stream(original(serving, *args, **kwargs))


_SERVING = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
HOOKS = {
    f"{_SERVING}._process_messages": ("AROUND", convert_chat),
    f"{_SERVING}._build_chat_response": ("AFTER", report_in_reply),
    f"{_SERVING}._generate_chat_stream": ("AROUND", report_in_stream),
}
