# SPDX-License-Identifier: Apache-2.0
"""Hooks on the chat route: text through the chat template, and the report in the reply.

Why: SGLang renders and encodes a chat in one function, so that the text between the two,
in which the facts stand, is seen by nobody else; and replies have fixed fields.
Unnecessary when the chat route hands its text to the tokenizer manager, as /generate does,
and when replies carry unknown `meta_info` through.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

from depcache.errors import PromptError, shorten
from depcache.prompt.chat_outline import find_message, mark_message
from depcache.prompt.outline import Outline
from depcache.prompt.wire import WireOutline, parse_wire
from sglang_patches.http.rejections import counting_rejections
from sglang_patches.requests.inbound import RenderedChat, refuse_long_text, require_ids
from sglang_patches.requests.outbound import add_to_reply, add_to_stream
from sglang_patches.requests.params import has_keys, read_match, without_match
from sglang_patches.requests.recognition import find_context, is_on, params_of
from sglang_patches.requests.roots import keys_of_chat

logger = logging.getLogger("depcache")

Encode = Callable[[str], list[int]]

# The text that was to be encoded, and how.
_deferred: ContextVar[list[tuple[str, Encode]] | None] = ContextVar(
    "depcache_deferred_chat", default=None
)
_TEXT_KEYS = frozenset({"depcache_paths", "depcache_outline"})
_PLACEHOLDER = -1  # no token id: stands for those of the text that is encoded later


def convert_chat(
    original: Callable[..., Any], serving: Any, request: Any, *args: Any, **kwargs: Any
) -> Any:
    """Render as ever; the text of a prompt with text goes on as it is, to be tokenized later.

    This runs on the event loop. The tokenizer manager's hook has a thread for the rest.
    """
    custom_params = request.custom_params
    if not has_keys(custom_params):
        return _convert_plain(original, serving, request, *args, **kwargs)
    is_text = not _TEXT_KEYS.isdisjoint(custom_params)
    with counting_rejections():
        if not is_text:
            parse_wire(custom_params)  # so that the reason is ours where something is missing
            require_ids(request.input_ids)
        elif request.input_ids is None:
            _refuse_long(serving, request)
    if not is_text or request.input_ids is not None:
        return original(serving, request, *args, **kwargs)

    def render() -> Any:
        return original(serving, request, *args, **kwargs)

    with counting_rejections():
        if "depcache_outline" in custom_params:
            wire = _read_outline(custom_params, serving)
            processed = _render_outline(render, serving, request, wire)
            # By what the client has sent, before the template has changed it.
            processed.prompt_ids.root_keys = partial(_read_root_keys, request)
            return processed
        return _render(render, serving)[0]


def _convert_plain(
    original: Callable[..., Any], serving: Any, request: Any, is_multimodal: bool, **kwargs: Any
) -> Any:
    """Render a chat without dependency data; with those of what the server finds in it.

    Where they are of no use after all, the chat goes on as it came.
    """

    def render() -> Any:
        return original(serving, request, is_multimodal, **kwargs)

    with counting_rejections():
        match = read_match(request.custom_params)
    if is_multimodal or request.input_ids is not None or not is_on(match):
        return render()
    found = find_context([_to_dict(message) for message in request.messages], match)
    if found is None:
        return render()
    outline, rows = found
    params = params_of(outline, rows)
    try:
        wire = _read_outline(params, serving)
        processed = _render_outline(render, serving, request, wire)
    except PromptError as error:
        logger.debug("what was recognised is of no use: %s", error)
        return render()
    request.custom_params = {**without_match(request.custom_params), **params}
    processed.prompt_ids.recognised = rows
    return processed


def _read_root_keys(request: Any) -> dict[str, int]:
    return keys_of_chat(request, [_to_dict(message) for message in request.messages])


def _read_outline(custom_params: Any, serving: Any) -> WireOutline:
    wire = parse_wire(custom_params, max_paths=_max_tokens(serving))
    assert isinstance(wire, WireOutline)
    return wire


def _to_dict(message: Any) -> dict[str, Any]:
    """What recognition reads of a message."""
    content = getattr(message, "content", None)
    if isinstance(content, list):
        content = [{"text": getattr(part, "text", None)} for part in content]
    return {
        "role": getattr(message, "role", None),
        "content": content,
        "tool_calls": getattr(message, "tool_calls", None),
    }


def _render_outline(
    render: Callable[[], Any], serving: Any, request: Any, wire: WireOutline
) -> Any:
    """Render the chat with a mark in the place of the context; the outline moves with it."""
    outline = wire.outline
    holder, name, before = _find_text(find_message(request.messages, outline), outline)
    text = getattr(holder, name)
    marked = mark_message(text, outline.moved(outline.start - before, outline.message))
    setattr(holder, name, marked.text)
    try:
        processed, encode = _render(render, serving)
    finally:
        setattr(holder, name, text)
    rendered, moved = marked.place(processed.prompt_ids)
    processed.prompt_ids = _make_chat(rendered, processed.prompt_ids.suffix, encode)
    processed.prompt_ids.wire, processed.prompt_ids.outline = wire, moved
    return processed


def _find_text(message: Any, outline: Outline) -> tuple[Any, str, int]:
    """The text of a message in which the context lies.

    Returns an object, the name of its attribute, and the code points of the message before it.
    """
    content = getattr(message, "content", None)
    if isinstance(content, str):
        return message, "content", 0
    before = 0
    for part in content if isinstance(content, list) else []:
        text = getattr(part, "text", None)
        if not isinstance(text, str):
            continue
        if before <= outline.start and outline.stop <= before + len(text):
            return part, "text", before
        before += len(text)
    raise PromptError(
        f"the outline covers code points {outline.start} to {shorten(outline.stop)} of message "
        f"{outline.message}, and no text part holds all of them: put the context into one part"
    )


def _render(render: Callable[[], Any], serving: Any) -> tuple[Any, Encode]:
    """What SGLang makes of the chat, with a `RenderedChat` in the place of its ids.

    The other is how SGLang would have encoded a text in the place of this one.
    """
    _defer_encode(serving.tokenizer_manager.tokenizer)
    token = _deferred.set([])
    try:
        processed = render()
        texts = _deferred.get() or []
    finally:
        _deferred.reset(token)
    # What SGLang appended, the beginning of an answer to be continued, goes behind the task.
    ids = list(processed.prompt_ids)
    if ids[:1] != [_PLACEHOLDER]:
        raise PromptError(
            "the way this model's chats are encoded does not allow text with dependency data: "
            "send input_ids with segments"
        )
    text, encode = texts[0]
    processed.prompt_ids = _make_chat(text, ids[1:], encode)
    return processed, encode


def _make_chat(text: str, suffix: list[int], encode: Encode) -> RenderedChat:
    chat = RenderedChat(text)
    chat.suffix = suffix
    chat.encode = lambda: [*encode(text), *suffix]
    return chat


def _max_tokens(serving: Any) -> int:
    manager = serving.tokenizer_manager
    return manager.context_len - manager.num_reserved_tokens


def _refuse_long(serving: Any, request: Any) -> None:
    texts = [request.custom_params.get("depcache_paths")]
    for message in request.messages:
        content = getattr(message, "content", None) or ""
        texts += (
            [content] if isinstance(content, str) else [getattr(p, "text", "") for p in content]
        )
    for text in texts:
        if isinstance(text, str):
            refuse_long_text(text, _max_tokens(serving))


def _defer_encode(tokenizer: Any) -> None:
    """Let `tokenizer.encode` keep the first text of a dependency chat instead of encoding it.

    The flat text of a graph is long, and its tokens would be thrown away.
    """
    if getattr(tokenizer, "_depcache_defers", False):
        return
    encode = tokenizer.encode

    def deferring_encode(text: Any, *args: Any, **kwargs: Any) -> Any:
        texts = _deferred.get()
        if texts is None or texts or not isinstance(text, str):
            return encode(text, *args, **kwargs)
        texts.append((text, lambda other: encode(other, *args, **kwargs)))
        return [_PLACEHOLDER]

    tokenizer.encode = deferring_encode
    tokenizer._depcache_defers = True


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
