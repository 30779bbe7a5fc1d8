# SPDX-License-Identifier: Apache-2.0
"""Behind what the rows of a fused request were computed, where that is not in the prompt.

A chunk leans on the chunk before it in its document. Its KV behind that one is a node of the tree
like any other, system -> predecessor -> chunk, and another node than that of the chunk alone. So a
request names the predecessor of a row by its tokens, and the row is looked for below them:

    prompt   | system | chunk 5 | chunk 9 | task |     behind = (chunk 4, None)
    tree       system -> chunk 4 -> chunk 5
                      -> chunk 9

The predecessor takes no part in the prompt: it has no rows there, and nothing attends to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from depcache.errors import PromptError, shorten
from depcache.prompt.forest import Forest, IntArray
from depcache.prompt.tokenization import get_prompt_tokenizer
from depcache.prompt.wire import MAX_TOKEN_ID

Ids = tuple[int, ...]

Behind = tuple[Ids | None, ...]
"""Per tree of a prompt the tokens that its root stands behind; None: behind the system alone."""


def check_behind(behind: Sequence[str | Ids | None], forest: Forest) -> Behind:
    """The same, where it fits the trees of `forest` and holds token ids alone.

    Raises PromptError.
    """
    if len(behind) != forest.num_trees:
        raise PromptError(
            f"depcache_behind has {len(behind)} entries, but the prompt has {forest.num_trees} "
            "rows: send one for each row, null where it stands behind nothing"
        )
    checked: list[Ids | None] = []
    for each in behind:
        if isinstance(each, str):
            raise PromptError(
                f"depcache_behind has the text {shorten(each)}, but the prompt came as ids: send "
                "the ids of the text"
            )
        if each is not None and not (min(each) >= 0 and max(each) <= MAX_TOKEN_ID):
            wrong = min(each) if min(each) < 0 else max(each)
            raise PromptError(
                f"{shorten(wrong)} is in depcache_behind: token ids are 0 to {MAX_TOKEN_ID}"
            )
        checked.append(each)
    return tuple(checked)


def encode_behind(behind: Sequence[str | Ids | None], tokenizer: Any) -> Behind:
    """The same, with the ids of each text, which is encoded as an element is."""
    texts = [each for each in behind if isinstance(each, str)]
    ids = iter(get_prompt_tokenizer(tokenizer).encode_elements(texts))
    return tuple(next(ids) if isinstance(each, str) else each for each in behind)


def cut_rows(
    tokens: IntArray, forest: Forest, rows: Iterable[int], behind: Behind | None
) -> tuple[IntArray, list[int], list[int]]:
    """Some trees of a prompt, each behind what it stands behind, as a context of their own.

    tokens  (num_tokens,) int64, of the prompt in pre-order
    rows    numbers of trees, ascending

    Returns the tokens (n,) int64 in pre-order, and lengths and parents of the segments.
    """
    roots = [*forest.structure.roots.tolist(), forest.num_segments]
    starts = [*forest.starts.tolist(), forest.task_start]
    parts = [np.empty(0, np.int64)]
    lens: list[int] = []
    parents: list[int] = []
    for row in rows:
        above = -1
        ids = None if behind is None else behind[row]
        if ids is not None:
            above = len(lens)
            parts.append(np.array(ids, np.int64))
            lens.append(len(ids))
            parents.append(-1)
        first, stop = roots[row], roots[row + 1]
        moved = len(lens) - first
        parts.append(tokens[starts[first] : starts[stop]])
        lens += forest.lens[first:stop].tolist()
        parents += [above if p < 0 else p + moved for p in forest.parents[first:stop].tolist()]
    return np.concatenate(parts), lens, parents


def tokens_seen(tokens: IntArray, forest: Forest, behind: Behind) -> IntArray:
    """(num_segments,) int64: tokens that each segment has seen beside those above it in the prompt.

    Where a tree stands behind just what the prompt has between system and tree, this is their
    number; behind anything else, a number so low that nothing counts as seen.
    """
    starts = forest.starts[forest.structure.roots]
    seen = np.zeros(forest.num_trees, np.int64)
    for row, ids in enumerate(behind):
        if ids is not None:
            is_same = np.array_equal(tokens[forest.system_len : starts[row]], ids)
            seen[row] = len(ids) if is_same else -forest.num_tokens
    return seen[forest.trees]
