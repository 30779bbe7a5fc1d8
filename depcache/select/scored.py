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
from depcache.select.query import choose_top
from depcache.select.simple import first, num_selected, selectable

FIRST_PARTS: dict[str, float] = {"query": 0.0, "mixed": 0.5}
"""Selector -> the part of its budget that the first tokens of the rows have, rounded down."""


@dataclass(frozen=True, slots=True, eq=False)
class ByScore:
    """A budget of which some is spent without scores.

    taken  (T,) int64 indices of context tokens that are chosen as it is, ascending
    num    how many of the others the scores choose, at least 1
    """

    taken: IntArray = field(repr=False)
    num: int

    @classmethod
    def of(cls, forest: Forest, recompute: Recompute) -> ByScore | None:
        """The budget of a request; None where nothing is chosen by scores."""
        part = FIRST_PARTS.get(recompute.select)
        if part is None:
            return None
        tokens = selectable(forest)
        num = min(num_selected(recompute.share, forest.context_len), len(tokens))
        num_first = int(part * num)
        taken = np.sort(first(forest, tokens, num_first, recompute.seed))
        return cls(taken, num - num_first) if num > num_first else None

    def choose(self, forest: Forest, scores: NDArray[np.floating]) -> IntArray:
        """All that is computed again: (T + num,) int64 indices, ascending, none twice.

        scores  (context_len,), one for each token of the context, also for those that cannot be
                selected
        """
        others = np.setdiff1d(selectable(forest), self.taken)
        chosen = others[choose_top(scores[others - forest.system_len], self.num)]
        return np.sort(np.concatenate((self.taken, chosen)))
