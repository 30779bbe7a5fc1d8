# SPDX-License-Identifier: Apache-2.0
"""Dependency prompts on an `sglang.Engine` in this process (DepCache paper, section 5).

engine = sglang.Engine(model_path=..., radix_cache_backend="depcache", ...)
prompt = DepPrompt.from_paths(paths, tokenizer=tokenizer, system=..., task=...)
kv = compute_depkv(engine, prompt)
print(generate_with_depkv(engine, kv, {"max_new_tokens": 32})["text"])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from depcache.errors import ServerError
from depcache.prompt.dep_prompt import DepPrompt
from sglang_patches.requests.state import ATTRIBUTE


@dataclass(frozen=True, slots=True)
class DepKV:
    """The KV of a prompt's context in an engine's cache.

    prompt  what it belongs to
    report  what was reused and what computed: {"shared", "shifted", "loaded", "missed", ...}

    The engine may evict it when it needs the room; it is computed again then. The KV of the
    task is not kept: it depends on everything in front of it.
    """

    prompt: DepPrompt
    report: dict[str, Any]


def compute_depkv(engine: Any, prompt: DepPrompt) -> DepKV:
    """Compute the KV of `prompt` that is not cached yet, and cache it.

    engine  an `sglang.Engine` started with `radix_cache_backend="depcache"`
    Raises PromptError for a prompt the engine cannot take, ServerError for an engine without
    DepCache.
    """
    result = _generate(engine, prompt, {"max_new_tokens": 0})
    return DepKV(prompt, result["meta_info"][ATTRIBUTE])


def generate_with_depkv(
    engine: Any, kv: DepKV, sampling_params: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Generate from a prompt whose context is cached; only the task is computed.

    sampling_params  SGLang's, `custom_params` included
    Returns SGLang's result: {"text", "output_ids", "meta_info"}.
    """
    return _generate(engine, kv.prompt, sampling_params or {})


def _generate(engine: Any, prompt: DepPrompt, sampling_params: Mapping[str, Any]) -> dict[str, Any]:
    input_ids, wire = prompt.to_wire()
    custom_params = {**(sampling_params.get("custom_params") or {}), **wire}
    result = engine.generate(
        input_ids=input_ids, sampling_params={**sampling_params, "custom_params": custom_params}
    )
    if ATTRIBUTE not in result["meta_info"]:
        raise ServerError(
            "the engine answered without DepCache: start it with radix_cache_backend='depcache'"
        )
    return result
