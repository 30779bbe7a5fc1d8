# SPDX-License-Identifier: Apache-2.0
"""Selectors that need scores: what is chosen without them, and how many tokens are by them.

The scores are those of `depcache.select.query` (FusionRAG, section 3.2), computed before the
request by somebody who has the model. Until they are there, nobody knows which tokens these are;
`depcache.select.select` has as many others in their place.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from depcache.prompt.forest import Forest, IntArray
from depcache.prompt.recompute import Recompute
from depcache.select.query import choose_top_of_chunks
from depcache.select.simple import deal, first, selectable

FIRST_PARTS: dict[str, float] = {"query": 0.0, "mixed": 0.5}
"""Selector -> the part of its budget that the first tokens of the rows have, rounded down."""


@dataclass(frozen=True, slots=True, eq=False)
class ByScore:
    """A budget of which some is spent without scores.

    taken  (T,) int64 indices of context tokens that are chosen as it is, ascending
    nums   how many of the others the scores choose, at least 1 in all: one number for the context,
           or one for each row, see `Recompute.budget`
    """

    taken: IntArray = field(repr=False)
    nums: tuple[int, ...]

    @classmethod
    def of(cls, forest: Forest, recompute: Recompute) -> ByScore | None:
        """The budget of a request; None where nothing is chosen by scores."""
        part = FIRST_PARTS.get(recompute.select)
        if part is None:
            return None
        dealt = deal(forest, recompute, selectable(forest))
        taken = [first(forest, tokens, int(part * num), recompute.seed) for tokens, num in dealt]
        nums = tuple(num - int(part * num) for _, num in dealt)
        return cls(np.sort(np.concatenate(taken)), nums) if any(nums) else None

    def choose(self, forest: Forest, scores: NDArray[np.floating]) -> IntArray:
        """All that is computed again: (T + sum of nums,) int64 indices, ascending, none twice.

        scores  (context_len,), one for each token of the context, also for those that cannot be
                selected
        """
        others = np.setdiff1d(selectable(forest), self.taken)
        starts = forest.structure.tree_starts if len(self.nums) > 1 else forest.starts[:1]
        lens = np.diff([*np.searchsorted(others, starts), len(others)]).tolist()
        best = choose_top_of_chunks(scores[others - forest.system_len], lens, self.nums)
        chosen = others[best]
        return np.sort(np.concatenate((self.taken, chosen)))
