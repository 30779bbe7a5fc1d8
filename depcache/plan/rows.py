# SPDX-License-Identifier: Apache-2.0
"""The rows of one request: which token of the prompt each holds, and where its KV comes from.

The engine gives a request one row of KV slots for each token, cached tokens first. What a row
is, is written down here once; whoever needs "the missed rows" asks, and nobody counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from depcache.plan.segments import SegmentTable


class RowKind(IntEnum):
    """Where the KV of a row comes from."""

    SHARED = 0  # the tree's own slot, used in place
    SHIFTED = 1  # a copy of the tree's, its key turned to another position
    LOADED = 2  # host memory; the slot becomes the tree's
    MISSED = 3  # computed: a context token that is not cached
    RECOMPUTED = 4  # computed: a context token that is to be, whatever is cached
    TASK = 5  # computed: the question


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Rows that may be cached, cut into runs. Lists of one length, in the order of the rows.

    segments  the segment whose tokens they are
    rows      the first row of each
    indices   the prompt index of its first token; the rest of both follow one by one
    sizes     tokens
    """

    segments: list[int]
    rows: list[int]
    indices: list[int]
    sizes: list[int]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class RowTable:
    """One entry per row of the prompt, all arrays (num_tokens,).

    index     int64: the row's token, as its index (pre-order) in the prompt
    kind      uint8: a `RowKind`
    storable  bool: its KV, once computed, may be given to the tree
    """

    index: np.ndarray
    kind: np.ndarray
    storable: np.ndarray

    @classmethod
    def make(
        cls,
        shared: np.ndarray,
        shifted: np.ndarray,
        loaded: np.ndarray,
        *,
        num_context: int,
        num_tokens: int,
        selected: np.ndarray | None = None,
        stored: int | None = None,
    ) -> RowTable:
        """Rows for a prompt of `num_tokens`, whose first `num_context` are system and context.

        shared, shifted, loaded  int64 prompt indices of the hits, in the order of their rows
        selected  bool (num_tokens,) tokens that are recomputed, of a fused request. What such a
                  request computes sees everything before it, so none of its KV is storable
        stored    but for what is computed from this index on, where nothing before it is

        The other tokens are computed; their rows come behind the hits, in prompt order.
        """
        is_miss = np.ones(num_tokens, bool)
        for hits in (shared, shifted, loaded):
            is_miss[hits] = False
        missed = np.flatnonzero(is_miss)
        index = np.concatenate((shared, shifted, loaded, missed))
        num_hits = num_tokens - len(missed)
        num_task = num_tokens - num_context
        sizes = (len(shared), len(shifted), len(loaded), len(missed) - num_task, 0, num_task)
        kind = np.repeat(np.arange(len(RowKind), dtype=np.uint8), sizes)
        storable = np.zeros(num_tokens, bool)
        if selected is None:
            storable[num_hits : num_tokens - num_task] = True
        else:
            kind[selected[index]] = RowKind.RECOMPUTED
            computed = index[num_hits : num_tokens - num_task]
            if stored is not None and (computed >= stored).all():
                storable[num_hits : num_tokens - num_task] = True
        return cls(index, kind, storable)

    def by_segment(self, table: SegmentTable) -> np.ndarray:
        """(num_segments, 4) int64: tokens of each segment of `table` by kind, up to `MISSED`.

        Recomputed tokens count among the missed: they are computed.
        """
        num_kinds = RowKind.MISSED + 1
        kind = np.empty(len(self.index), np.int64)
        kind[self.index] = np.minimum(self.kind, RowKind.MISSED)
        sizes = np.array(table.stops, np.int64) - np.array(table.starts, np.int64)
        segment = np.repeat(np.arange(len(sizes)), sizes)
        # Segments follow one another and end where the task begins.
        cells = segment * num_kinds + kind[: len(segment)]
        return np.bincount(cells, minlength=len(sizes) * num_kinds).reshape(-1, num_kinds)

    def runs(self, table: SegmentTable) -> Runs:
        """The storable rows, cut where row, token or segment does not follow on."""
        rows = np.flatnonzero(self.storable)
        indices = self.index[rows]
        segments = np.searchsorted(table.starts, indices, side="right") - 1
        follows = (np.diff(rows) == 1) & (np.diff(indices) == 1) & (np.diff(segments) == 0)
        firsts = np.flatnonzero(np.concatenate(([True], ~follows))) if len(rows) else rows
        sizes = np.diff(np.append(firsts, len(rows)))
        return Runs(
            segments[firsts].tolist(),
            rows[firsts].tolist(),
            indices[firsts].tolist(),
            sizes.tolist(),
        )
