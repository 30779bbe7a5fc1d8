# SPDX-License-Identifier: Apache-2.0
"""Requests on their way in: text to ids, and every check possible before the scheduler.

What is wrong here is a ValueError of the one request that has it, which SGLang answers with
HTTP 400. The scheduler may then trust what it gets.

`prepare` is the one reader of every route. It takes as long as the prompt is long, so it belongs
on a thread: the event loop serves everybody. What is cheap to see is refused first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from depcache.errors import PromptError, explain_validation, shorten
from depcache.position.rope import why_not_movable
from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.differs import find_differences
from depcache.prompt.forest import Forest, IntArray
from depcache.prompt.layout import Layout
from depcache.prompt.outline import Outline
from depcache.prompt.wire import (
    WireIds,
    WireOutline,
    WireText,
    forest_from_wire,
    outline_of_paths,
    parse_wire,
    read_input_ids,
    without_wire,
)
from sglang_patches.requests.beginnings import closing_of
from sglang_patches.requests.behind import read_behind, texts_behind
from sglang_patches.requests.fused import read_fused, refuse_deviation
from sglang_patches.requests.inner import SEEING_ROWS
from sglang_patches.requests.params import custom_params_of, has_dependencies
from sglang_patches.requests.recognition import RECOGNISED
from sglang_patches.requests.roots import note_roots, note_roots_of_ids

logger = logging.getLogger("depcache")

MAX_BYTES_PER_TOKEN = 64
"""Longest text of a dependency prompt, and longest `depcache_paths`, in characters for each token
of the model's context. As text a prompt is about five for each token, and a few times longer than
its trees."""

DIFFERS = "depcache_differs"
"""Attribute of a request that `prepare` has seen: in what it differs from its flat text."""

ABSENT = "depcache_absent"
"""Attribute of a request: references of its rows to what is not in it, if it counted them."""

_IS_READY = "depcache_is_ready"  # attribute of a request that `prepare` has seen


class RenderedChat(str):
    """The text of a chat after its template, to be tokenized later.

    suffix      token ids that go behind it: the beginning of an answer to be continued
    encode      the ids of the whole chat as SGLang makes them, `suffix` included
    wire        what the request says of one of its messages, where it comes with an outline
    outline     the same outline, of this text
    recognised  the server found it by itself: rows by recogniser
    root_keys   reads the keys of its roots, each with its first row
    """

    suffix: list[int]
    encode: Callable[[], list[int]]
    wire: WireOutline | None = None
    outline: Outline | None = None
    recognised: dict[str, int] | None = None
    root_keys: Callable[[], dict[str, int]] | None = None


class _OneRequest(BaseModel):
    """What SGLang passes to the scheduler for one prompt, where it also takes lists for batches."""

    model_config = ConfigDict(strict=True, from_attributes=True)

    rid: str | None = None
    stream: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    token_ids_logprob: list[int] | None = None
    priority: int | None = None
    lora_path: str | None = None


def prepare(obj: Any, manager: Any) -> None:
    """Make a request with dependency data ready for the scheduler; leave a plain one alone.

    obj      SGLang's GenerateReqInput for one prompt; `text`, `input_ids` and `sampling_params`
             change
    manager  SGLang's TokenizerManager

    Raises PromptError. Safe to call twice, and from several threads for several requests.
    """
    if getattr(obj, _IS_READY, False) or not has_dependencies(obj):
        return
    if isinstance(obj.text, RenderedChat) and obj.text.recognised is not None:
        setattr(obj, RECOGNISED, obj.text.recognised)
    if not hasattr(obj, RECOGNISED):
        _prepare(obj, manager)
        return
    given = obj.text, obj.input_ids, obj.sampling_params
    try:
        _prepare(obj, manager)
    except PromptError as error:  # nobody asked for it: the prompt goes on as it came
        logger.debug("what was recognised is of no use: %s", error)
        obj.text, obj.input_ids, obj.sampling_params = given
        _make_plain(obj)


def _make_plain(obj: Any) -> None:
    """Take the dependency data off a request again."""
    if isinstance(obj.text, RenderedChat):
        obj.input_ids, obj.text = obj.text.encode(), None
    others = without_wire(custom_params_of(obj))
    obj.sampling_params = {**obj.sampling_params, "custom_params": others or None}
    delattr(obj, RECOGNISED)


def _prepare(obj: Any, manager: Any) -> None:
    _refuse_types(obj)
    # SGLang takes prompts that are shorter than this.
    max_tokens = manager.context_len - manager.num_reserved_tokens
    _refuse_long(obj, max_tokens)
    wire = _wire_of(obj, max_tokens)
    if isinstance(wire, WireIds):
        require_ids(obj.input_ids)
        tokens = read_input_ids(obj.input_ids)
        forest = forest_from_wire(tokens, wire)
        # Who sent ids alone did not say what the flat text was. In version 1 two children of one
        # segment share what it says; in version 2 it may be the header of rows.
        children = np.bincount(forest.parents[forest.parents >= 0])
        is_merged = wire.depcache_version == 1 and bool((children > 1).any())
        note_roots_of_ids(obj)
    else:
        prompt = _convert_text(obj, wire, manager.tokenizer)
        tokens, forest = read_input_ids(obj.input_ids), prompt.forest
        is_merged = prompt.num_tokens < prompt.num_flat_tokens
    _refuse_many_tokens(len(tokens), max_tokens)
    _validate_ids(obj, tokens, forest, wire.layout, manager.model_config)
    refuse_deviation(getattr(wire, "recompute", None), manager)
    behind = read_behind(wire, tokens, forest, manager)
    read_fused(obj, wire, tokens, forest, behind)
    differs = find_differences(
        forest, wire.layout, is_merged=is_merged, is_behind=behind is not None
    )
    setattr(obj, DIFFERS, differs)
    if isinstance(wire, WireOutline) and wire.recompute is None:
        _count_rows(obj, wire.outline)
    setattr(obj, _IS_READY, True)


def _count_rows(obj: Any, outline: Outline) -> None:
    """Let the report count the rows that say what they see, or refer to."""
    if not outline.merge and (outline.sees or outline.absent is not None):
        setattr(obj, SEEING_ROWS, outline.num_rows)
        setattr(obj, ABSENT, outline.absent)


def require_ids(input_ids: Any) -> None:
    """Raise PromptError when segments came with a text: nobody knows where its tokens end."""
    if input_ids is None:
        raise PromptError(
            "segments count the tokens of input_ids, but the prompt came as text: send input_ids, "
            "or send depcache_outline instead of segments"
        )


def read_text(
    text: str,
    wire: WireText | WireOutline,
    tokenizer: Any,
    *,
    outline: Outline | None = None,
    add_special_tokens: bool,
) -> DepPrompt:
    """The prompt of a text, which is as it is after the chat template.

    outline             of the text; None: it is that of `wire`
    add_special_tokens  whether the tokenizer may put its own (BOS) before the text
    """
    if outline is None:
        outline = outline_of_paths(text, wire) if isinstance(wire, WireText) else wire.outline
    return DepPrompt.from_outline(
        text,
        outline,
        tokenizer=tokenizer,
        layout=wire.layout,
        add_special_tokens=add_special_tokens,
        closing=closing_of(wire.depcache_template, tokenizer),
    )


def refuse_long_text(text: str, max_tokens: int, name: str = "the prompt") -> None:
    """Raise PromptError for a text that no prompt of so many tokens can have."""
    max_len = MAX_BYTES_PER_TOKEN * max_tokens
    if len(text) > max_len:
        raise PromptError(
            f"{name} has {len(text)} characters, and this server takes at most {max_len}, "
            f"{MAX_BYTES_PER_TOKEN} for each token of the model's context: send fewer paths"
        )


def refuse_lists(obj: Any) -> None:
    """Raise PromptError for a list where one prompt, a plain one too, has one value.

    SGLang takes lists in these fields, for batches, and looks at them only in the scheduler.
    """
    for name in fields_of_one_value():
        value = getattr(obj, name, None)
        if isinstance(value, list):
            raise PromptError(f"{name} is {shorten(value)}: send one value for one prompt")


@cache
def fields_of_one_value() -> tuple[str, ...]:
    """Fields that may hold a list in a GenerateReqInput, but not in what the scheduler gets."""
    from sglang.srt.managers.io_struct import GenerateReqInput, TokenizedGenerateReqInput

    given, passed = map(get_type_hints, (GenerateReqInput, TokenizedGenerateReqInput))
    return tuple(
        name
        for name in given.keys() & passed.keys()
        # The tokens of a prompt are passed on as an array.
        if name != "input_ids" and _takes_lists(given[name]) and not _takes_lists(passed[name])
    )


def _takes_lists(hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(map(_takes_lists, get_args(hint)))
    return hint is list or get_origin(hint) is list


def _refuse_types(obj: Any) -> None:
    try:
        _OneRequest.model_validate(obj)
    except ValidationError as error:
        raise PromptError(f"{explain_validation(error)}; send one prompt per request") from None


def _refuse_long(obj: Any, max_tokens: int) -> None:
    """Refuse what is too long, before anything is made of it."""
    if isinstance(obj.text, str):
        refuse_long_text(obj.text, max_tokens)
    params = custom_params_of(obj)
    paths = params.get("depcache_paths")
    if isinstance(paths, str):
        refuse_long_text(paths, max_tokens, "depcache_paths")
    refuse_long_text(texts_behind(params.get("depcache_behind")), max_tokens, "depcache_behind")
    names = ("lens", "parents", "joins")
    for given in (obj.input_ids, *(params.get(f"depcache_segment_{name}") for name in names)):
        if isinstance(given, list):
            _refuse_many_tokens(len(given), max_tokens)


def _refuse_many_tokens(num_tokens: int, max_tokens: int) -> None:
    if num_tokens >= max_tokens:
        raise PromptError(
            f"the prompt has {num_tokens} tokens or segments, which is longer than the model's "
            f"context takes, at most {max_tokens - 1}: send fewer paths"
        )


def _wire_of(obj: Any, max_tokens: int) -> WireIds | WireText | WireOutline:
    """The dependency data of a request that has some; of a chat with an outline, as its route
    has read it."""
    if isinstance(obj.text, RenderedChat) and obj.text.wire is not None:
        return obj.text.wire
    wire = parse_wire(custom_params_of(obj), max_paths=max_tokens)
    assert wire is not None
    if (
        isinstance(wire, WireOutline)
        and wire.outline.message is not None
        and obj.text is not None  # else it came with ids, which is said later
    ):
        raise PromptError(
            f"message of the outline is {wire.outline.message}, but the prompt has no messages: "
            "send null, and count from the beginning of the prompt's text"
        )
    return wire


def _convert_text(obj: Any, wire: WireText | WireOutline, tokenizer: Any) -> DepPrompt:
    """Replace text and outline of a request by ids, in place. Returns the prompt."""
    text = obj.text
    if text is None:
        name = "depcache_paths" if isinstance(wire, WireText) else "depcache_outline"
        raise PromptError(
            f"{name} came with input_ids: send the prompt as text, or the segments as ids"
        )
    if not isinstance(text, str):
        raise PromptError(f"the prompt is {shorten(text)}: send one text per request")
    # The template of a chat has written the special tokens that belong before it.
    is_chat = isinstance(text, RenderedChat)
    prompt = read_text(
        text,
        wire,
        tokenizer,
        outline=text.outline if is_chat else None,
        add_special_tokens=not is_chat,
    )
    if isinstance(wire, WireOutline) and not hasattr(obj, RECOGNISED):
        note_roots(
            obj,
            text,
            text.outline or wire.outline if is_chat else wire.outline,
            tokenizer,
            read_keys=text.root_keys if is_chat else None,
            add_special_tokens=not is_chat,
        )
    obj.input_ids, params = prompt.to_wire()
    if is_chat:
        obj.input_ids += text.suffix
        obj.text = None
    others = without_wire(custom_params_of(obj))
    obj.sampling_params = {**obj.sampling_params, "custom_params": {**others, **params}}
    return prompt


def _validate_ids(
    obj: Any, tokens: IntArray, forest: Forest, layout: Layout, model_config: Any
) -> None:
    """Raise PromptError unless the scheduler can run this request's segments."""
    vocab_size = model_config.vocab_size
    if int(tokens.max()) >= vocab_size:
        raise PromptError(
            f"{int(tokens.max())} is among the input_ids, but the model's vocabulary has "
            f"{vocab_size} tokens: tokenize with the served model's tokenizer"
        )
    if layout != "tree":
        why = why_not_movable(model_config.hf_text_config)
        if why is not None:
            raise PromptError(
                f"layout {layout!r} moves cached keys, which this model does not allow "
                f"because {why}: use the layout 'tree'"
            )
    _refuse_features(obj, forest.task_start)


def _refuse_features(obj: Any, task_start: int) -> None:
    if obj.return_logprob and 0 <= (obj.logprob_start_len or 0) < task_start:
        raise PromptError(
            f"logprob_start_len {obj.logprob_start_len} lies in the context, which has no "
            f"linear order: use {task_start} or more, or -1 for output tokens only"
        )
    for name in (
        "return_hidden_states",
        "return_routed_experts",
        "return_indexer_topk",
        "session_params",
        "input_embeds",
        "image_data",
        "video_data",
        "audio_data",
        "positional_embed_overrides",
        "multi_item_delimiter_indices",
    ):
        if getattr(obj, name, None):
            raise PromptError(f"{name} cannot be combined with dependency data: leave out one")
