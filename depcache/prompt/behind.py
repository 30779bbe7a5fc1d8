# SPDX-License-Identifier: Apache-2.0
"""Behind what the rows of a fused request were computed, where that is not in the prompt.

A chunk leans on the chunk before it in its document. Its KV behind that one is a node of the tree
like any other, system -> predecessor -> chunk, and another node than that of the chunk alone. So a
request names the predecessor of a row by its tokens, and the row is looked for below them:

    prompt   | system | chunk 5 | chunk 9 | task |     behind = (chunk 4, None)
    tree       system -> chunk 4 -> chunk 5
                      -> chunk 9

A row may also stand behind several chunks, such as those most like it (FusionRAG, eq. 10). Each of
these is computed alone, they are placed one after the other, and the row sees them all:

    position   0 ....... system ..........................................
               | system | chunk 7 | chunk 2 | chunk 5    behind = ((chunk 7, chunk 2), ...)

Chunks 7 and 2 have not seen each other, so this is no way of the tree, and the row hangs below a
root of its own, whose key holds the system and these chunks.

Those before a row take no part in the prompt: they have no rows there, and nothing attends to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from depcache.errors import PromptError, shorten
from depcache.prompt.forest import Forest, IntArray
from depcache.prompt.recompute import Entry, parts_of
from depcache.prompt.tokenization import get_prompt_tokenizer
from depcache.prompt.wire import MAX_TOKEN_ID

Ids = tuple[int, ...]

Behind = tuple[Ids | tuple[Ids, ...] | None, ...]
"""Per tree of a prompt the tokens that its root stands behind, or those of several chunks, two at
least; None: behind the system alone."""


def several_of(entry: Ids | tuple[Ids, ...] | None) -> tuple[Ids, ...] | None:
    """Returns the chunks of an entry that has several; None for any other."""
    several = tuple(part for part in entry or () if not isinstance(part, int))
    return several or None


def ids_of(entry: Ids | tuple[Ids, ...] | None) -> list[Ids]:
    """Returns the tokens of each chunk of an entry."""
    return [part for part in parts_of(entry) if not isinstance(part, str)]


def check_behind(behind: Sequence[Entry], forest: Forest) -> Behind:
    """The same, where it fits the trees of `forest` and holds token ids alone.

    Raises PromptError.
    """
    if len(behind) != forest.num_trees:
        raise PromptError(
            f"depcache_behind has {len(behind)} entries, but the prompt has {forest.num_trees} "
            "rows: send one for each row, null where it stands behind nothing"
        )
    num_segments = np.diff([*forest.structure.roots.tolist(), forest.num_segments])
    checked: list[Ids | tuple[Ids, ...] | None] = []
    for row, entry in enumerate(behind):
        chunks = [_check_ids(part) for part in parts_of(entry)]
        if len(chunks) > 1 and num_segments[row] > 1:
            raise PromptError(
                f"row {row} is a tree of {num_segments[row]} segments, and depcache_behind has "
                "several chunks for it: send a row of one segment, or one chunk"
            )
        checked.append(tuple(chunks) if len(chunks) > 1 else chunks[0] if chunks else None)
    return tuple(checked)


def _check_ids(part: str | Ids) -> Ids:
    if isinstance(part, str):
        raise PromptError(
            f"depcache_behind has the text {shorten(part)}, but the prompt came as ids: send "
            "the ids of the text"
        )
    if not (min(part) >= 0 and max(part) <= MAX_TOKEN_ID):
        wrong = min(part) if min(part) < 0 else max(part)
        raise PromptError(
            f"{shorten(wrong)} is in depcache_behind: token ids are 0 to {MAX_TOKEN_ID}"
        )
    return part


def encode_behind(behind: Sequence[Entry], tokenizer: Any) -> Behind:
    """The same, with the ids of each text, which is encoded as an element is."""
    texts = list(
        dict.fromkeys(part for each in behind for part in parts_of(each) if isinstance(part, str))
    )
    ids = dict(zip(texts, get_prompt_tokenizer(tokenizer).encode_elements(texts), strict=True))
    encoded: list[Ids | tuple[Ids, ...] | None] = []
    for entry in behind:
        parts = tuple(ids[part] if isinstance(part, str) else part for part in parts_of(entry))
        encoded.append(parts if len(parts) > 1 else parts[0] if parts else None)
    return tuple(encoded)


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
            assert several_of(ids) is None
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
            is_same = several_of(ids) is None and np.array_equal(
                tokens[forest.system_len : starts[row]], np.array(ids)
            )
            seen[row] = len(ids) if is_same else -forest.num_tokens
    return seen[forest.trees]
