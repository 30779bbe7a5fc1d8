# SPDX-License-Identifier: Apache-2.0
"""What the rows of a fused request stand behind, on its way in: text to ids, and every check."""

from __future__ import annotations

from typing import Any

from depcache.errors import PromptError
from depcache.prompt.behind import Behind, check_behind, encode_behind
from depcache.prompt.forest import Forest, IntArray
from depcache.prompt.recompute import Recompute
from depcache.prompt.wire_forms import Wire, WireOutline


def read_behind(wire: Wire, tokens: IntArray, forest: Forest, manager: Any) -> Behind | None:
    """Per tree what it stands behind; None where no row of the request stands behind anything.

    wire     as it came: beside a text with texts, which are encoded as elements are
    manager  SGLang's TokenizerManager

    Raises PromptError for what fits neither the prompt nor the model. The request that settles all
    rows must fit the model's context too.
    """
    recompute: Recompute | None = getattr(wire, "recompute", None)
    given = None if recompute is None else recompute.behind
    if given is None or not any(given):
        return None
    if isinstance(wire, WireOutline):
        given = encode_behind(given, manager.tokenizer)
    behind = check_behind(given, forest)
    vocab_size = manager.model_config.vocab_size
    highest = max(max(each) for each in behind if each is not None)
    if highest >= vocab_size:
        raise PromptError(
            f"{highest} is in depcache_behind, but the model's vocabulary has {vocab_size} tokens: "
            "tokenize with the served model's tokenizer"
        )
    num_tokens = len(tokens) + sum(len(each) for each in behind if each is not None)
    max_tokens = manager.context_len - manager.num_reserved_tokens
    if num_tokens >= max_tokens:
        raise PromptError(
            f"the prompt has {num_tokens} tokens with those of depcache_behind, and the model's "
            f"context takes at most {max_tokens - 1}: send fewer rows, or fewer of them behind "
            "others"
        )
    return behind
