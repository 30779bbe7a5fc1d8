# SPDX-License-Identifier: Apache-2.0
"""Selectors that need scores: what is chosen without them, and how many tokens are by them.

The scores are computed before the request by somebody who has the model. Until they are there,
nobody knows which tokens these are; `depcache.select.select` has as many others in their place.

    query          what the question gives each token, having seen the system alone (FusionRAG,
                   section 3.2)
    query-context  the same of the question behind the reused context
    deviation      how far the keys of the second layer lie from those under full view (CacheBlend)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from depcache.prompt.forest import Forest, IntArray
from depcache.prompt.recompute import BY_SCORE, Recompute
from depcache.select.focus import find_focus
from depcache.select.query import choose_top_of_chunks
from depcache.select.simple import SELECTORS, deal, first, selectable

Scorer = Literal["query", "query-context", "deviation"]

_SCORERS: dict[str, Scorer] = {"query-context": "query-context", "deviation": "deviation"}
"""Selector -> what scores the context; the question alone for all others."""

FIRST_PARTS: dict[str, float] = {**dict.fromkeys(BY_SCORE, 0.0), "mixed": 0.5}
"""Selector -> the part of its budget that the first tokens of the rows have, rounded down. Others
choose all of it themselves."""


@dataclass(frozen=True, slots=True, eq=False)
class ByScore:
    """A budget of which some is spent without scores.

    taken     (T,) int64 indices of context tokens that are chosen as it is, ascending
    nums      how many of the others the scores choose: one number for the context, or one for each
              row, see `Recompute.budget`
    has_focus  what was chosen of rows out of focus is dropped. Else `nums` add up to 1 at least
    scorer  where the scores come from
    seen    (num_segments,) int64, as for `selectable`; None where no row stands behind anything,
            or the scores choose nothing but a focus
    """

    taken: IntArray = field(repr=False)
    nums: tuple[int, ...]
    has_focus: bool = False
    scorer: Scorer = "query"
    seen: IntArray | None = field(default=None, repr=False)

    @property
    def asks_question(self) -> bool:
        """Whether the scores are of what the question gives the context."""
        return self.scorer != "deviation"

    def num_beside(self, forest: Forest, num_layers: int) -> int:
        """Returns how many tokens are computed beside forward passes, in passes of `num_layers`.

        For the deviation that is one layer of all tokens of system and context.
        """
        return 0 if self.asks_question else ceil(forest.task_start / num_layers)

    def num_computed(self, forest: Forest, num_layers: int) -> int:
        """Returns how many tokens the scores cost, beside the rows, in passes of `num_layers`.

        These are the question, what is computed beside, and the token that an engine draws.
        """
        num_question = forest.task_len if self.asks_question else 0
        return num_question + self.num_beside(forest, num_layers) + 1

    @classmethod
    def of(
        cls, forest: Forest, recompute: Recompute, seen: IntArray | None = None
    ) -> ByScore | None:
        """The budget of a request; None where nothing is chosen by scores."""
        if not recompute.needs_scores:
            return None
        part = FIRST_PARTS.get(recompute.select)
        selector = SELECTORS[recompute.select] if part is None else first
        dealt = deal(forest, recompute, selectable(forest, seen))
        nums_taken = [num if part is None else int(part * num) for _, num in dealt]
        taken = [
            selector(forest, tokens, num, recompute.seed)
            for (tokens, _), num in zip(dealt, nums_taken, strict=True)
        ]
        nums = tuple(num - out for (_, num), out in zip(dealt, nums_taken, strict=True))
        has_focus = recompute.focus is not None
        if not any(nums) and not (has_focus and any(nums_taken)):
            return None
        scorer = _SCORERS.get(recompute.select, "query")
        return cls(np.sort(np.concatenate(taken)), nums, has_focus, scorer, seen)

    def choose(self, forest: Forest, sums: NDArray[np.floating]) -> IntArray:
        """All that is computed again: int64 indices, ascending, none twice.

        sums  (num_layers, context_len), the scores of each token of the context, also of those
              that cannot be selected: what the question gives them, of which the last layer scores
              them, or how far they deviate. Without a focus one layer

        Returns T + sum of nums of them; with a focus those that lie in it.
        """
        chosen = self._choose(forest, sums[-1])
        if not self.has_focus:
            return chosen
        starts = forest.structure.tree_starts
        masses = np.add.reduceat(sums, starts - forest.system_len, axis=1)
        row_of = np.searchsorted(starts, chosen, side="right") - 1
        return chosen[np.isin(row_of, find_focus(masses).chunks)]

    def _choose(self, forest: Forest, scores: NDArray[np.floating]) -> IntArray:
        others = np.setdiff1d(selectable(forest, self.seen), self.taken)
        starts = forest.structure.tree_starts if len(self.nums) > 1 else forest.starts[:1]
        lens = np.diff([*np.searchsorted(others, starts), len(others)]).tolist()
        best = choose_top_of_chunks(scores[others - forest.system_len], lens, self.nums)
        chosen = others[best]
        return np.sort(np.concatenate((self.taken, chosen)))
