# SPDX-License-Identifier: Apache-2.0
"""Which tokens of the context are computed again: all ways to choose a share of them.

first          the first tokens of each chunk, but for the prompt's first chunk
query          those that the question alone leans on in the last layer (FusionRAG 3.2)
query-context  the same of the question behind the context
mixed          half `first`, half `query`
names          the first tokens of each entity's name, nothing else
random         any
deviation      those whose keys of layer 1 deviate most (CacheBlend as LMCache runs it)
oracle         those whose keys and values of all layers deviate most
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import ceil

import numpy as np
from numpy.typing import NDArray

from depcache.select.query import choose_top, critical_scores
from eval.chunks.oracle import Cached, Placement, Question

SELECTORS = (
    "first",
    "query",
    "query-context",
    "mixed",
    "names",
    "random",
    "deviation",
    "oracle",
)

Scores = NDArray[np.float64]


def num_chosen(share: float, num_context: int) -> int:
    """Tokens that a share of the context is; less than one token counts as one."""
    return ceil(round(share * num_context, 6))


class Selectors:
    """All choices of one question over one KV of its context.

    cached  what is reused; None is each chunk alone
    seed    of `random`
    """

    def __init__(self, question: Question, cached: Cached | None = None, seed: int = 0) -> None:
        self._question = question
        self._cached = question.alone if cached is None else cached
        self._start = question.written.forest.system_len
        self._num = question.written.forest.context_len
        self._seed = seed
        self._queries: dict[tuple[Placement, bool], Scores] = {}

    def choose(self, selector: str, share: float, placement: Placement) -> NDArray[np.int64]:
        """Indices in the prompt, ascending; the share rounded up."""
        number = num_chosen(share, self._num)
        if selector == "mixed":
            chosen = self._mixed(number, placement)
        else:
            scores = self._scores(selector, placement)
            if selector == "names":
                number = min(number, int(np.isfinite(scores).sum()))
            chosen = choose_top(scores, number)
        return self._start + chosen

    def _mixed(self, number: int, placement: Placement) -> NDArray[np.int64]:
        first = choose_top(self._first, number // 2)
        scores = self._scores("query", placement).copy()
        scores[first] = -np.inf
        return np.sort(np.concatenate((first, choose_top(scores, number - len(first)))))

    def _scores(self, selector: str, placement: Placement) -> Scores:
        """(num_context,) float64, the highest first."""
        ways: dict[str, Callable[[], Scores]] = {
            "first": lambda: self._first,
            "query": lambda: self._query(placement, True),
            "query-context": lambda: self._query(placement, False),
            "names": lambda: self._names,
            "random": lambda: self._random,
            "deviation": lambda: self._deviations[0][1],
            "oracle": lambda: sum(each.sum(0) for each in self._deviations),  # type: ignore[return-value]
        }
        return ways[selector]()

    @cached_property
    def _first(self) -> Scores:
        written = self._question.written
        inside = written.context
        scores = -written.in_chunk[inside].astype(np.float64)
        # It has seen all that stands before it, so it comes last.
        scores[written.chunks[inside] == 0] = -np.inf
        return scores

    @cached_property
    def _names(self) -> Scores:
        written = self._question.written
        inside = written.context
        offsets = written.in_entity[inside]
        is_name = (offsets >= 0) & (written.chunks[inside] > 0)
        return np.where(is_name, -offsets.astype(np.float64), -np.inf)

    @cached_property
    def _random(self) -> Scores:
        return np.random.default_rng(self._seed).random(self._num)

    @cached_property
    def _deviations(self) -> list[Scores]:
        return self._question.deviations(self._cached)

    def _query(self, placement: Placement, alone: bool) -> Scores:
        key = placement, alone
        if key not in self._queries:
            weights = self._question.question_weights(self._cached, placement, alone=alone)
            self._queries[key] = critical_scores(weights)
        return self._queries[key]
