# SPDX-License-Identifier: Apache-2.0
"""Requests on their way in: text form to ids, and every check possible before the scheduler.

What is wrong here is a ValueError of the one request that has it, which SGLang answers with
HTTP 400. The scheduler may then trust what it gets.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from depcache.errors import PromptError, shorten
from depcache.position.rope import why_not_movable
from depcache.prompt.nodes import DepPrompt
from depcache.prompt.wire import (
    PREFIX,
    WireIds,
    WireText,
    forest_from_wire,
    parse_wire,
    read_input_ids,
)
from sglang_patches.beginnings import context_class

# /generate converts in a worker thread, a chat in the event loop's; the element cache is shared.
_tokenizer_lock = threading.Lock()


def text_to_ids(
    text: str, wire: WireText, tokenizer: Any, *, add_special_tokens: bool
) -> tuple[list[int], dict[str, Any]]:
    """Turn a prompt text with the flat paths in it into tokens in pre-order and ids form.

    add_special_tokens  whether the tokenizer may put its own (BOS) before the text
    """
    with _tokenizer_lock:
        prompt = DepPrompt.from_text(
            text,
            wire,
            tokenizer=tokenizer,
            context=context_class(),
            add_special_tokens=add_special_tokens,
        )
    return prompt.to_wire()


def custom_params_of(obj: Any) -> Any:
    """The `custom_params` of a GenerateReqInput for one prompt, None without any."""
    sampling_params = getattr(obj, "sampling_params", None)
    if not isinstance(sampling_params, Mapping):
        return None
    return sampling_params.get("custom_params")


def has_dependencies(obj: Any) -> bool:
    """Whether a GenerateReqInput for one prompt carries any of our keys."""
    custom_params = custom_params_of(obj)
    return isinstance(custom_params, Mapping) and any(
        isinstance(key, str) and key.startswith(PREFIX) for key in custom_params
    )


def require_ids(input_ids: Any) -> None:
    """Raise PromptError when segments came with a text: nobody knows where its tokens end."""
    if input_ids is None:
        raise PromptError(
            "segments count the tokens of input_ids, but the prompt came as text: send input_ids, "
            "or send depcache_paths instead of segments"
        )


def convert_text(obj: Any, tokenizer: Any) -> bool:
    """Replace the text form of a request by ids, in place. Returns whether it was there.

    obj  SGLang's GenerateReqInput for one prompt; `input_ids` and `sampling_params` change
    """
    if not has_dependencies(obj):
        return False
    wire = parse_wire(custom_params_of(obj))
    if not isinstance(wire, WireText):
        require_ids(obj.input_ids)
        return False
    if obj.text is None:
        raise PromptError(
            "depcache_paths came with input_ids: send the prompt as text, or the segments as ids"
        )
    if not isinstance(obj.text, str):
        raise PromptError(f"the prompt is {shorten(obj.text)}: send one text per request")
    obj.input_ids, params = text_to_ids(obj.text, wire, tokenizer, add_special_tokens=True)
    replace_params(obj, params)
    return True


def replace_params(obj: Any, params: Mapping[str, Any]) -> None:
    """Exchange the dependency keys of `obj.sampling_params`; other keys stay as they are."""
    others = {
        key: value
        for key, value in obj.sampling_params["custom_params"].items()
        if not key.startswith(PREFIX)
    }
    obj.sampling_params = {**obj.sampling_params, "custom_params": {**others, **params}}


def validate_ids(obj: Any, input_ids: Any, model_config: Any) -> None:
    """Raise PromptError unless the scheduler can run this request's dependency data.

    obj           SGLang's GenerateReqInput for one prompt, ids form
    model_config  SGLang's ModelConfig
    """
    if not has_dependencies(obj):
        return
    wire = parse_wire(custom_params_of(obj))
    if not isinstance(wire, WireIds):
        return
    require_ids(input_ids)
    tokens = read_input_ids(input_ids)
    forest = forest_from_wire(tokens, wire)
    vocab_size = model_config.vocab_size
    if int(tokens.max()) >= vocab_size:
        raise PromptError(
            f"{int(tokens.max())} is among the input_ids, but the model's vocabulary has "
            f"{vocab_size} tokens: tokenize with the served model's tokenizer"
        )
    if wire.layout != "tree":
        why = why_not_movable(model_config.hf_text_config)
        if why is not None:
            raise PromptError(
                f"layout {wire.layout!r} moves cached keys, which this model does not allow "
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
