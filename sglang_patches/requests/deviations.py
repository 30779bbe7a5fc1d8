# SPDX-License-Identifier: Apache-2.0
"""How far a context's reused keys deviate from those under full view, in the second layer.

CacheBlend chooses the tokens whose keys deviate most where attention has first mixed tokens: the
keys of the second layer, sums of squares over heads and channels. Those under full view need the
embedding, one layer and a projection for all tokens of system and context. The request that has
it done is a fused one with nothing computed again; the reused keys are its rows.

`sglang_patches.attention.deviation` computes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from depcache.prompt.forest import Forest
from depcache.select import ByScore


@dataclass(frozen=True, slots=True, eq=False)
class DeviatingRows:
    """A context all of which is there in this forward pass.

    deviations  where they are kept
    request     number of the request in its batch
    key_rows    (context_len,) int64, the request's row of each token of the context
    """

    deviations: Deviations
    request: int
    key_rows: np.ndarray = field(repr=False)


@dataclass(slots=True, eq=False)
class Deviations:
    """The deviation of each token of a context, once it is known; see `scoring.Scoring`.

    tokens  (task_start,) int64, ids of system and context
    sums    (context_len,) float64 on the device
    """

    by_score: ByScore
    forest: Forest = field(repr=False)
    tokens: np.ndarray = field(repr=False)
    sums: Tensor | None = field(default=None, repr=False)

    def restart(self) -> Deviations:
        """As in `Scoring`."""
        return Deviations(self.by_score, self.forest, self.tokens)

    def rows(
        self, order: np.ndarray, num_prefix: int, num_new: int, request: int, start: int
    ) -> DeviatingRows | None:
        """As in `Scoring`: the context, in the pass that computes the last row."""
        if num_prefix + num_new < self.forest.num_tokens:
            return None
        inside = slice(self.forest.system_len, self.forest.task_start)
        return DeviatingRows(self, request, np.argsort(order)[inside])

    def chosen(self) -> list[int] | None:
        """As in `Scoring`."""
        if self.sums is None:
            return None
        return self.by_score.choose(self.forest, self.sums.cpu().numpy()[None]).tolist()
