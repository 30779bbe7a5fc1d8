# SPDX-License-Identifier: Apache-2.0
"""Scores of a fused request's context, kept by the request that settles its rows.

For a selector that goes by scores the settling request has all rows, and behind them the question,
which sees the system and itself only (FusionRAG, section 3.2). It is a tree of its own to whoever
makes masks, but stands where it does in the flat prompt, and is never cached:

    index  0 ...... system_len ........... task_start ............. num_tokens - 1
           | system | rows, as in `tree`   | the question           | its first token again
    sees   itself   | its ancestors        | the system, itself     | everything

The last token is there because an engine draws an answer from one; it is thrown away.

`sglang_patches.attention.scores` computes the scores, and the report on its way to the process that
asked has the chosen indices.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depcache.plan import SegmentTable
from depcache.prompt.forest import Forest
from depcache.select import ByScore
from flashinfer_masks.visibility import Structure

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
    }


def take_param(told: Any) -> ByScore | None:
    """Returns the budget that the scheduler is told of; None without any."""
    if told is None:
        return None
    return ByScore(np.array(told["taken"], np.int64), tuple(told["nums"]), told["focus"])


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRows:
    """Rows of the question in one forward pass.

    scores    where they are added
    request   number of the request in its batch
    queries   the rows, among all that the batch computes
    key_rows  (context_len,) int64, the request's row of each token of the context
    """

    scores: Scores
    request: int
    queries: slice
    key_rows: np.ndarray = field(repr=False)


@dataclass(slots=True, eq=False)
class Scores:
    """What the question has given each token of the context so far.

    by_score  what is chosen in the end
    forest    of the settling request, whose task is the question and the last token
    homes     (context_len,) int64 positions that the keys are turned for
    placed    (context_len,) int64 positions that they have in the flat prompt
    sums      layer -> (context_len,) float64 on the device. The last layer's, and with a focus each
              one's
    num_rows  rows of the question that are in the last layer's
    """

    by_score: ByScore
    forest: Forest = field(repr=False)
    homes: np.ndarray = field(repr=False)
    placed: np.ndarray = field(repr=False)
    sums: dict[int, Tensor] = field(default_factory=dict[int, Tensor], repr=False)
    num_rows: int = 0

    @property
    def num_question(self) -> int:
        return self.forest.task_len - 1

    def restart(self) -> Scores:
        """Returns the same before its first row: a pass that still runs adds to the old one."""
        return Scores(self.by_score, self.forest, self.homes, self.placed)

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
        """Returns the question's rows among [num_prefix, num_prefix + num_new); None without any.

        order    (num_tokens,) int64, index of each row; the question comes behind the context
        request  number of the request in its batch
        start    where its new rows begin, among all that the batch computes
        """
        first = max(num_prefix, self.forest.task_start)
        stop = min(num_prefix + num_new, self.forest.num_tokens - 1)
        if first >= stop:
            return None
        row_of = np.empty(len(order), np.int64)
        row_of[order] = np.arange(len(order))
        shift = start - num_prefix
        queries = slice(first + shift, stop + shift)
        key_rows = row_of[self.forest.system_len : self.forest.task_start]
        return ScoredRows(self, request, queries, key_rows)

    def chosen(self) -> list[int] | None:
        """Returns the indices that are computed again; None where a row is missing.

        Waits for the device.
        """
        if self.num_rows != self.num_question:
            return None
        sums = torch.stack([self.sums[layer] for layer in sorted(self.sums)]).cpu().numpy()
        return self.by_score.choose(self.forest, sums).tolist()


def set_apart(
    forest: Forest, table: SegmentTable, by_score: ByScore
) -> tuple[Structure, SegmentTable, Scores]:
    """Returns a settling request's structure and segments with its question set apart.

    forest, table  of the request in layout `tree`, with the question as its task
    """
    structure = Structure.make(
        forest.num_tokens,
        forest.system_len,
        np.append(forest.lens, forest.task_len - 1),
        np.append(forest.parents, -1),
    )
    positions = table.positions.copy()
    positions[forest.task_start :] = np.arange(forest.task_start, forest.num_tokens)
    inside = slice(forest.system_len, forest.task_start)
    scores = Scores(by_score, forest, table.positions[inside], np.arange(inside.start, inside.stop))
    # Its KV is none that a request with its context would compute.
    return structure, replace(table, positions=positions, tail_key=b""), scores
