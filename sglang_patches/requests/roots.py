# SPDX-License-Identifier: Apache-2.0
"""From a request to its roots: by keys, as clients call them, and by tokens, as the cache does.

Read in the HTTP process, where the text is, and only on a server that publishes root events.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from depcache.config import Config
from depcache.prompt.outline import Outline
from depcache.prompt.roots import adapter_of, keys_of, read_roots
from depcache.prompt.tokenization import get_prompt_tokenizer
from sglang_patches.requests.params import custom_params_of
from sglang_patches.requests.tenants import join, sealed

ROOTS = "depcache_roots"
"""Key of `custom_params`, see `sglang_patches.requests.inner`: `system` has the token ids before
all rows, `roots` has pairs of a key and the token ids of the root."""

_is_on = False


def set_roots(config: Config) -> None:
    """Take over the settings, for this process."""
    global _is_on
    _is_on = bool(config.root_events)


def keys_of_chat(request: Any, messages: list[dict[str, Any]]) -> dict[str, int]:
    """The keys of a chat's roots, with the first row of each; {} where nobody wants them.

    request   of SGLang, with dependency data
    messages  its messages as JSON
    """
    if not _is_on:
        return {}
    params = request.custom_params
    body = {"messages": messages, "custom_params": params}
    named = {"model": request.model, "lora_path": getattr(request, "lora_path", None)}
    tenant = join(getattr(request, "cache_salt", None), getattr(request, "extra_key", None))
    return keys_of(read_roots(body), params, tenant, adapter_of(named))


def note_roots(
    obj: Any,
    text: str,
    outline: Outline,
    tokenizer: Any,
    *,
    read_keys: Callable[[], dict[str, int]] | None = None,
    add_special_tokens: bool,
) -> None:
    """Let the scheduler know the roots of a prompt that came as a text.

    obj     SGLang's GenerateReqInput
    text    after the chat template; `outline` is of it
    read_keys  reads those of its chat; None: they are read from this text
    """
    if not _is_on:
        return
    keys = _keys_of(obj, {"text": text}) if read_keys is None else read_keys()
    if not keys:
        return
    tokenizer = get_prompt_tokenizer(tokenizer)
    firsts = [0, *accumulate(outline.rows)]
    starts = list(accumulate(outline.lens, initial=outline.start))
    elements = (firsts[row] for row in keys.values())
    pieces = [text[starts[element] : starts[element + 1]] for element in elements]
    system = tokenizer.encode_text(text[: outline.start], first=True)
    if add_special_tokens:
        system = tokenizer.leading_special_ids() + system
    ids = tokenizer.encode_elements(pieces)
    pairs = [[key, list(each)] for key, each in zip(keys, ids, strict=True)]
    setattr(obj, ROOTS, {"system": list(system), "roots": pairs})


def note_roots_of_ids(obj: Any) -> None:
    """The same of a prompt that came as ids."""
    if not _is_on:
        return
    params = custom_params_of(obj)
    keys = _keys_of(obj, {"input_ids": obj.input_ids})
    system_len = params.get("depcache_system_len", 0)
    starts = list(accumulate(params["depcache_segment_lens"], initial=system_len))
    pairs = [[key, list(obj.input_ids[starts[row] : starts[row + 1]])] for key, row in keys.items()]
    if pairs:
        setattr(obj, ROOTS, {"system": list(obj.input_ids[:system_len]), "roots": pairs})


def _keys_of(obj: Any, prompt: dict[str, Any]) -> dict[str, int]:
    params = custom_params_of(obj)
    roots = read_roots({**prompt, "custom_params": params})
    return keys_of(roots, params, sealed(obj), obj.lora_path)
