# SPDX-License-Identifier: Apache-2.0
"""What the rows of a fused request stand behind, on its way in: text to ids, and every check."""

from __future__ import annotations

from typing import Any

import numpy as np

from depcache.errors import PromptError
from depcache.prompt.behind import Behind, check_behind, encode_behind, ids_of
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
    chunks = [ids_of(each) for each in behind]
    highest = max(max(ids) for each in chunks for ids in each)
    if highest >= vocab_size:
        raise PromptError(
            f"{highest} is in depcache_behind, but the model's vocabulary has {vocab_size} tokens: "
            "tokenize with the served model's tokenizer"
        )
    # Rows behind one chunk are settled together, one behind several by itself.
    num_tokens = len(tokens) + sum(len(each[0]) for each in chunks if len(each) == 1)
    stops = np.append(forest.structure.tree_starts[1:], forest.task_start)
    lens = (stops - forest.structure.tree_starts).tolist()
    for own, each in zip(lens, chunks, strict=True):
        if len(each) > 1:
            num_tokens = max(num_tokens, forest.system_len + sum(map(len, each)) + own + 1)
    max_tokens = manager.context_len - manager.num_reserved_tokens
    if num_tokens >= max_tokens:
        raise PromptError(
            f"the prompt has {num_tokens} tokens with those of depcache_behind, and the model's "
            f"context takes at most {max_tokens - 1}: send fewer rows, or fewer of them behind "
            "others"
        )
    return behind


def texts_behind(given: Any) -> str:
    """All text of a `depcache_behind` as it came, whatever else is in it."""
    entries = given if isinstance(given, list) else []
    parts = [part for each in entries for part in (each if isinstance(each, list) else [each])]
    return "".join(part for part in parts if isinstance(part, str))
