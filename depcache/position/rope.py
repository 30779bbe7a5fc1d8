# SPDX-License-Identifier: Apache-2.0
"""Which models' keys can be moved to another position, told from the model's config."""

from __future__ import annotations

from typing import Any

MOVABLE_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def why_not_movable(config: Any, kv_cache_dtype: str = "auto") -> str | None:
    """Why cached keys of this model cannot be moved; None if they can.

    config          a HuggingFace text config (attributes are read, nothing is imported)
    kv_cache_dtype  SGLang's `--kv-cache-dtype`

    The `tree` layout never moves keys and is always fine.
    """
    if "fp8" in kv_cache_dtype or "fp4" in kv_cache_dtype:
        return f"the KV cache is quantized ({kv_cache_dtype})"
    if getattr(config, "alibi", False) or getattr(config, "position_embedding_type", "") == "alibi":
        return "the model uses ALiBi instead of rotary positions"
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if rope is None:
        has_rope = getattr(config, "rope_theta", None) is not None
        return None if has_rope else "the model has no rotary positions"
    if not isinstance(rope, dict):
        return f"its RoPE settings cannot be read ({type(rope).__name__})"
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in MOVABLE_ROPE_TYPES:
        return f"RoPE type {kind!r} is not one of {', '.join(MOVABLE_ROPE_TYPES)}"
    if rope.get("mrope_section"):
        return "the model uses multimodal RoPE sections"
    return None
