# SPDX-License-Identifier: Apache-2.0
"""Selectors that need nothing but the shape of the prompt, and the budget that all spend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from depcache.errors import PromptError, shorten
from depcache.prompt.forest import Forest, IntArray
from depcache.prompt.recompute import BY_SCORE, Recompute
from depcache.select.cachecraft import num_to_fix, overhead_alone


def select(forest: Forest, recompute: Recompute, seen: IntArray | None = None) -> IntArray:
    """(K,) int64 indices of the tokens to compute again, ascending.

    seen  as for `selectable`

    With a selector that needs scores only the number is right (`depcache.select.scored`).

    Raises PromptError when the indices that were given do not fit, or the selector is unknown.
    """
    if recompute.selected is not None:
        return read_selected(recompute.selected, forest)
    selector = SELECTORS.get(recompute.select)
    if selector is None:
        raise PromptError(
            f"{recompute.select} is no selector of this server: use one of {', '.join(SELECTORS)}"
        )
    parts = deal(forest, recompute, selectable(forest, seen))
    chosen = [selector(forest, tokens, num, recompute.seed) for tokens, num in parts]
    return np.sort(np.concatenate(chosen))


def deal(forest: Forest, recompute: Recompute, tokens: IntArray) -> list[tuple[IntArray, int]]:
    """The tokens that can be selected, as the budget parts them, and how many of each part are.

    tokens  as `selectable` gives them; one part with the budget `global`, else one for each row
    """
    is_stored = recompute.select == "stored"
    if (recompute.budget == "global" and not is_stored) or not forest.num_trees:
        return [(tokens, min(num_selected(recompute.share, forest.context_len), len(tokens)))]
    starts = [*forest.structure.tree_starts.tolist(), forest.task_start]
    parts = np.split(tokens, np.searchsorted(tokens, starts[1:-1]))
    lens = np.diff(starts).tolist()
    if is_stored:
        overheads = [overhead_alone(not row, recompute.alpha) for row in range(len(lens))]
        nums = [num_to_fix(cfo, length) for cfo, length in zip(overheads, lens, strict=True)]
    else:
        nums = [num_selected(recompute.share, length) for length in lens]
    return [(part, min(num, len(part))) for part, num in zip(parts, nums, strict=True)]


def read_selected(selected: Sequence[int], forest: Forest) -> IntArray:
    """The given indices, (K,) int64. Raises PromptError unless they ascend within the context."""
    try:
        indices = np.array(selected, np.int64)
    except OverflowError:
        raise PromptError(
            f"{shorten(max(selected, key=abs))} is among depcache_selected: it is no index"
        ) from None
    wrong = np.flatnonzero(np.diff(indices) <= 0)
    if len(wrong):
        i = int(wrong[0])
        raise PromptError(
            f"depcache_selected has {int(indices[i + 1])} behind {int(indices[i])}: send ascending "
            "indices, each once"
        )
    outside = indices[(indices < forest.system_len) | (indices >= forest.task_start)]
    if len(outside):
        raise PromptError(
            f"{int(outside[0])} is among depcache_selected, but the context of this prompt is "
            f"[{forest.system_len}, {forest.task_start}): system and task cannot be selected"
        )
    return indices


def num_selected(share: float, num_tokens: int) -> int:
    """How many of a context's tokens, or of a row's, a share is: k = r N (FusionRAG, section 3.2).

    At least one, unless the share is 0.
    """
    return max(int(share > 0 and num_tokens > 0), round(share * num_tokens))


def selectable(forest: Forest, seen: IntArray | None = None) -> IntArray:
    """Context tokens whose KV another view would change: int64, ascending.

    seen  (num_segments,) int64, tokens that each segment has seen beside those above it in the
          prompt, see `depcache.prompt.behind.tokens_seen`; None where none has

    The others see everything before them as it is, such as those of the first row.
    """
    structure = forest.structure
    beside = 0 if seen is None else seen
    num_seen = np.repeat(structure.node_above[1:] + beside, structure.lens)
    index = np.arange(forest.system_len, forest.task_start)
    within = index - np.repeat(structure.starts, structure.lens)
    return index[num_seen + within < index]


def first(forest: Forest, tokens: IntArray, num: int, seed: int) -> IntArray:
    """The first tokens of each row: the budget is dealt over the rows from their beginnings.

    Where chunks are cut in mid-sentence, or rows begin with what the last one ended with, this is
    where the loss is.
    """
    tree_of = np.searchsorted(forest.structure.tree_starts, tokens, side="right") - 1
    within = tokens - forest.structure.tree_starts[tree_of]
    return tokens[np.lexsort((tokens, within))[:num]]


def random(forest: Forest, tokens: IntArray, num: int, seed: int) -> IntArray:
    """Any tokens: the control that a selector has to beat."""
    return np.random.default_rng(seed).permutation(tokens)[:num]


SELECTORS: dict[str, Callable[[Forest, IntArray, int, int], IntArray]] = {
    "first": first,
    # As many tokens as they will choose, until their scores are there: `depcache.select.scored`.
    **dict.fromkeys(BY_SCORE, first),
    # And those of rows that are alone behind the system: `depcache.select.variants`.
    "stored": first,
    "random": random,
}
