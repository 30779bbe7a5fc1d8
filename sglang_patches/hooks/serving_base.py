# SPDX-License-Identifier: Apache-2.0
"""Hook on how the OpenAI routes join salt and extra key: so that no two tenants become one.

Why: SGLang writes `cache_salt` and `extra_key` behind each other with nothing in between, and
answers a list in either with HTTP 500.
Unnecessary, and not there, with 0.5.23, where the salt has a field of its own up to the tokenizer
manager, whose hook joins the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_patches.compat import JOINS_SALT
from sglang_patches.requests.tenants import TenantKey, join


def join_salt(original: Callable[..., Any], serving: Any, request: Any) -> TenantKey | None:
    """The `extra_key` of a request; the tokenizer manager's hook knows that a salt is in it."""
    return join(getattr(request, "cache_salt", None), getattr(request, "extra_key", None))


_SERVING = "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase"
HOOKS = {f"{_SERVING}._compute_extra_key": ("AROUND", join_salt)} if JOINS_SALT else {}
