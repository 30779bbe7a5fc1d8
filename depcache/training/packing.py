# SPDX-License-Identifier: Apache-2.0
"""Several samples in one row, none of which sees another, so that little is padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from depcache.prompt.forest import IntArray
from depcache.training.samples import IGNORED, Sample, shift_alternatives


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Samples one behind the other. Arrays are (num_tokens,) int64, but for `alternatives` and
    `joins`, which are as those of a sample; indices are of the row.

        visible(i, j) = starts[i] <= j <= i and (i < ends[j] or j < task_starts[i] <= i)
                        or a join lets i see j

    starts       first index of the token's sample
    ends         first index that does not see the token, but for tasks
    task_starts  first index of the first task of the token's sample
    """

    tokens: IntArray
    positions: IntArray
    starts: IntArray
    ends: IntArray
    task_starts: IntArray
    labels: IntArray
    alternatives: IntArray
    joins: IntArray
    num_samples: int

    def __len__(self) -> int:
        return len(self.tokens)


def make_row(samples: Sequence[Sample]) -> Row:
    """One row of these samples, in order."""
    lens = np.array([len(sample) for sample in samples])
    starts = np.cumsum(lens) - lens
    task_starts = starts + np.array([sample.task_start for sample in samples])
    return Row(
        tokens=np.concatenate([sample.tokens for sample in samples]),
        positions=np.concatenate([sample.positions for sample in samples]),
        starts=np.repeat(starts, lens),
        ends=np.concatenate([s.ends + start for s, start in zip(samples, starts, strict=True)]),
        task_starts=np.repeat(task_starts, lens),
        labels=np.concatenate([sample.labels for sample in samples]),
        alternatives=shift_alternatives([sample.alternatives for sample in samples], starts),
        joins=np.concatenate([s.joins + start for s, start in zip(samples, starts, strict=True)]),
        num_samples=len(samples),
    )


def pack(samples: Iterable[Sample], max_tokens: int) -> list[Row]:
    """Rows of at most `max_tokens`, by first fit from the longest sample to the shortest.

    A sample that is longer has a row of its own.
    """
    rows: list[list[Sample]] = []
    room: list[int] = []
    first_open = 0  # rows before it are full to the last token that anyone could need
    ordered = sorted(samples, key=len, reverse=True)
    smallest = len(ordered[-1]) if ordered else 0
    for sample in ordered:
        for i in range(first_open, len(rows)):
            if room[i] >= len(sample):
                rows[i].append(sample)
                room[i] -= len(sample)
                break
        else:
            rows.append([sample])
            room.append(max_tokens - len(sample))
        while first_open < len(rows) and room[first_open] < smallest:
            first_open += 1
    return [make_row(row) for row in rows]


def pad(rows: Sequence[Row], num_tokens: int | None = None) -> dict[str, IntArray]:
    """Rows of equal length as arrays (num_rows, num_tokens); what is added sees only itself.

    `alternatives` is (num_rows, num_tokens, K) with room for the most that a token has, which may
    be none; `IGNORED` fills up. Joins are `trees` and `parts`, what is joined and what is seen by
    it, numbered from 1 on in each row, with 0 for everything else, and `sees`, bool (num_rows,
    trees + 1, parts + 1); where no row has a join it is (num_rows, 1, 1).

    num_tokens  at least that of the longest row; None: just that
    """
    num = num_tokens or max(map(len, rows))

    def fill(name: str, value: int) -> IntArray:
        out = np.full((len(rows), num), value, np.int64)
        for i, row in enumerate(rows):
            out[i, : len(row)] = getattr(row, name)
        return out

    batch = {name: fill(name, 0) for name in ("tokens", "positions", "task_starts")}
    batch |= {"labels": fill("labels", IGNORED), "ends": fill("ends", num)}
    batch["alternatives"] = _spread([row.alternatives for row in rows], num)
    batch["starts"] = fill("starts", 0)
    for i, row in enumerate(rows):
        batch["starts"][i, len(row) :] = np.arange(len(row), num)
    return batch | _number_joins([row.joins for row in rows], num)


def _number_joins(joins: Sequence[IntArray], num_tokens: int) -> dict[str, IntArray]:
    """`trees`, `parts` and `sees` of a batch, see `pad`."""
    numbered = [
        tuple(np.unique(each[:, at], axis=0, return_inverse=True) for at in ([0, 1], [2, 3]))
        for each in joins
    ]
    sizes = [max(len(pair[side][0]) for pair in numbered) + 1 for side in (0, 1)]
    sees = np.zeros((len(joins), *sizes), bool)
    places = np.zeros((2, len(joins), num_tokens), np.int64)
    for row, pair in enumerate(numbered):
        for side, (ranges, _) in enumerate(pair):
            for number, (start, stop) in enumerate(ranges, 1):
                places[side, row, start:stop] = number
        sees[row, pair[0][1] + 1, pair[1][1] + 1] = True
    return {"trees": places[0], "parts": places[1], "sees": sees}


def _spread(alternatives: Sequence[IntArray], num_tokens: int) -> IntArray:
    """The pairs of index and token of each row as an array, see `pad`."""
    pairs = shift_alternatives(alternatives, num_tokens * np.arange(len(alternatives)))
    at, tokens = pairs[np.argsort(pairs[:, 0], kind="stable")].T
    column = np.arange(len(at)) - np.searchsorted(at, at)
    num_columns = int(column.max(initial=-1)) + 1
    out = np.full((len(alternatives) * num_tokens, num_columns), IGNORED, np.int64)
    out[at, column] = tokens
    return out.reshape(len(alternatives), num_tokens, num_columns)
