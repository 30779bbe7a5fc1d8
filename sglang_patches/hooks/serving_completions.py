# SPDX-License-Identifier: Apache-2.0
"""Hooks on the completions route: the report in the reply.

Why: a reply has fixed fields and SGLang copies only its own from `meta_info`.
Unnecessary when replies carry unknown `meta_info` through.
"""

from __future__ import annotations

from sglang_patches.hooks.serving_chat import report_in_reply, report_in_stream

_SERVING = "sglang.srt.entrypoints.openai.serving_completions.OpenAIServingCompletion"
HOOKS = {
    f"{_SERVING}._build_completion_response": ("AFTER", report_in_reply),
    f"{_SERVING}._generate_completion_stream": ("AROUND", report_in_stream),
}
