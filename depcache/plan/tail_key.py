# SPDX-License-Identifier: Apache-2.0
"""What the KV of a tail was computed behind, as bytes that are equal only for equals.

A token of the tail sees the whole context. Its KV is a function of the context's tokens, of who
sees whom among them, of their positions, and of the tail up to itself. In layout `tree` the
positions follow from lengths, parents and joins. So these and the tokens are the key, letter for
letter: the same facts in another order, or cut in another way, are another context.
"""

from __future__ import annotations

from itertools import chain

import numpy as np

from depcache.cache.node import TAIL_MARK
from depcache.cache.radix import TOKEN_BYTES, to_key
from depcache.prompt.forest import Forest
from depcache.prompt.layout import Layout

MIN_TAIL_TOKENS = 16
"""A shorter tail is not begun: it saves less than the key of its context costs."""


def make_tail_key(key: bytes, forest: Forest, layout: Layout) -> bytes:
    """The `Root.behind` of what follows this context; b"" where a tail cannot be cached.

    key  raw int32 tokens of the prompt

    In the other layouts a hit is moved, so the KV of a tail would depend on where the context was
    computed first. The same holds where tokens of the context are computed again with full view.

    O(context).
    """
    structure = forest.structure
    if layout != "tree" or len(structure.recomputed):
        return b""
    joins = [[root, len(seen), *seen] for root, seen in structure.joins]
    head = [forest.task_start, forest.system_len, forest.num_segments, len(joins)]
    return b"".join(
        (
            TAIL_MARK,
            to_key(np.array([*head, *chain.from_iterable(joins)], np.int64)),
            to_key(forest.lens),
            to_key(forest.parents),
            key[: forest.task_start * TOKEN_BYTES],
        )
    )
