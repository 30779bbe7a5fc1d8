# SPDX-License-Identifier: Apache-2.0
"""Scores of a fused request's context, kept by a request that runs before it.

For the selectors `query` and `mixed` it is the one that settles, with all rows, and behind them the
question, which sees the system and itself only (FusionRAG, section 3.2). It is a tree of its own to
whoever makes masks, but stands where it does in the flat prompt, and is never cached:

    index  0 ...... system_len ........... task_start ............. num_tokens - 1
           | system | rows, as in `tree`   | the question           | its first token again
    sees   itself   | its ancestors        | the system, itself     | the same as the question

The last token is there because an engine draws an answer from one; it is thrown away, and sees the
question's part so that no key of the context is read but for the scores.

Where a row stands behind something that is not in the prompt, it is no row of layout `tree`. Then
the request runs when all rows are settled, as a fused one with nothing computed again, and the
question stands apart in the same way.

For `query-context` it is always that, and the question sees everything before it. For `deviation`
(`sglang_patches.requests.deviations`) it is the same without the question.

`sglang_patches.attention.scores` computes the scores, and the report on its way to the process that
asked has the chosen indices.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from depcache.plan import SegmentTable
from depcache.prompt.forest import Forest
from depcache.select import ByScore
from flashinfer_masks.visibility import Structure
from sglang_patches.requests.deviations import DeviatingRows, Deviations

SCORING = "depcache_scoring"
"""Key of `custom_params`, see `sglang_patches.requests.inner`: what `to_param` makes."""

CHOSEN = "chosen"
"""Where the report of a settling request has the indices."""


def to_param(by_score: ByScore) -> dict[str, Any]:
    """Returns what the scheduler is told of a budget, in plain numbers."""
    return {
        "nums": list(by_score.nums),
        "taken": by_score.taken.tolist(),
        "focus": by_score.has_focus,
        "scorer": by_score.scorer,
        "seen": None if by_score.seen is None else by_score.seen.tolist(),
    }


def take_param(told: Any) -> ByScore | None:
    """Returns the budget that the scheduler is told of; None without any."""
    if told is None:
        return None
    taken = np.array(told["taken"], np.int64)
    seen = None if told["seen"] is None else np.array(told["seen"], np.int64)
    return ByScore(taken, tuple(told["nums"]), told["focus"], told["scorer"], seen)


class Scoring(Protocol):
    """What a request's state keeps of the scores of its context."""

    def restart(self) -> Scoring:
        """Returns the same before its first row: a pass that still runs adds to the old one."""
        ...

    def rows(
        self, order: np.ndarray, num_prefix: int, num_new: int, request: int, start: int
    ) -> ScoredRows | DeviatingRows | None:
        """Returns what there is to do in the pass that computes the rows [num_prefix,
        num_prefix + num_new); None if nothing.

        order    (num_tokens,) int64, index of each row; the question comes behind the context
        request  number of the request in its batch
        start    where its new rows begin, among all that the batch computes
        """
        ...

    def chosen(self) -> list[int] | None:
        """Returns the indices that are computed again; None where a score is missing.

        Waits for the device.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRows:
    """Rows of the question in one forward pass.

    scores    where they are added
    request   number of the request in its batch
    queries   the rows, among all that the batch computes
    key_rows  (num_keys,) int64, the request's row of each token of `Scores.keys` so far
    num_seen  (num_rows,) int64, how many of these each row sees; None where each sees all
    """

    scores: Scores
    request: int
    queries: slice
    key_rows: np.ndarray = field(repr=False)
    num_seen: np.ndarray | None = field(default=None, repr=False)


@dataclass(slots=True, eq=False)
class Scores:
    """What the question has given each token of the context so far.

    by_score  what is chosen in the end
    forest    of the request that scores, whose task is the question and the last token
    homes     (num_tokens,) int64 positions that the keys are turned for
    keys      indices of the tokens that the question's weights are over, from the system's first
              one or from the first behind it
    sums      layer -> (context_len,) float64 on the device. The last layer's, and with a focus each
              one's
    num_rows  rows of the question that are in the last layer's
    """

    by_score: ByScore
    forest: Forest = field(repr=False)
    homes: np.ndarray = field(repr=False)
    keys: range
    sums: dict[int, Tensor] = field(default_factory=dict[int, Tensor], repr=False)
    num_rows: int = 0

    @property
    def num_question(self) -> int:
        return self.forest.task_len - 1

    @property
    def context(self) -> slice:
        """Where the context is among `keys`."""
        start = self.forest.system_len - self.keys.start
        return slice(start, start + self.forest.context_len)

    def restart(self) -> Scores:
        """As in `Scoring`."""
        return Scores(self.by_score, self.forest, self.homes, self.keys)

    def add(self, layer: int, sums: Tensor, num_rows: int) -> None:
        """Adds what rows of the question give in a layer: (context_len,) float64.

        num_rows  how many, of which the last layer tells; 0 in any other
        """
        before = self.sums.get(layer)
        self.sums[layer] = sums if before is None else before + sums
        self.num_rows += num_rows

    def rows(
        self, order: np.ndarray, num_prefix: int, num_new: int, request: int, start: int
    ) -> ScoredRows | None:
        """As in `Scoring`: the question's rows among those that are computed."""
        first = max(num_prefix, self.forest.task_start)
        stop = min(num_prefix + num_new, self.forest.num_tokens - 1)
        if first >= stop:
            return None
        row_of = np.argsort(order)
        shift = start - num_prefix
        queries = slice(first + shift, stop + shift)
        stop_keys = min(stop, self.keys.stop)
        key_rows = row_of[self.keys.start : stop_keys]
        num_seen = np.minimum(np.arange(first, stop) + 1, stop_keys) - self.keys.start
        sees_all = bool((num_seen == len(key_rows)).all())
        return ScoredRows(self, request, queries, key_rows, None if sees_all else num_seen)

    def chosen(self) -> list[int] | None:
        """As in `Scoring`."""
        if self.num_rows != self.num_question:
            return None
        sums = torch.stack([self.sums[layer] for layer in sorted(self.sums)]).cpu().numpy()
        return self.by_score.choose(self.forest, sums).tolist()


def prepare_scoring(
    tokens: np.ndarray, forest: Forest, table: SegmentTable, by_score: ByScore
) -> tuple[Structure, SegmentTable, Scoring]:
    """Returns structure and segments of a request that scores, and where the scores are kept.

    tokens  (num_tokens,) int64 of the request, with the question as its task, if it has any
    forest, table  of the same
    """
    # Its question's KV is none that a request with its context would compute.
    table = replace(table, tail_key=b"")
    if by_score.scorer == "query":
        return _set_apart(forest, table, by_score)
    if by_score.scorer == "query-context":
        keys = range(forest.num_tokens - 1)
        return forest.structure, table, Scores(by_score, forest, table.positions, keys)
    return forest.structure, table, Deviations(by_score, forest, tokens[: forest.task_start])


def _set_apart(
    forest: Forest, table: SegmentTable, by_score: ByScore
) -> tuple[Structure, SegmentTable, Scores]:
    structure = Structure.make(
        forest.num_tokens,
        forest.system_len,
        np.append(forest.lens, forest.task_len),
        np.append(forest.parents, -1),
    )
    positions = table.positions.copy()
    positions[forest.task_start :] = np.arange(forest.task_start, forest.num_tokens)
    keys = range(forest.system_len, forest.task_start)
    scores = Scores(by_score, forest, positions, keys)
    return structure, replace(table, positions=positions), scores
