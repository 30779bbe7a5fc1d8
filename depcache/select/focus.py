# SPDX-License-Identifier: Apache-2.0
"""The chunks that a question focuses on, layer by layer: Cache-Craft, algorithm 1.

As printed, the cut lies where the term -p log p of a gap is largest, and that has its peak at
p = 1/e: a gap that holds nearly all of the fall is not chosen. `by="gap"` cuts at the largest gap.
The printed sum of terms begins at an index that is not defined; here it begins with nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Focus:
    """Which chunks are in focus, ascending, and the layer from which on that is settled.

    layer  counted from 0; None where no window of layers agreed
    """

    chunks: tuple[int, ...]
    layer: int | None


def find_focus(
    masses: NDArray[np.floating], window: int = 3, by: Literal["entropy", "gap"] = "entropy"
) -> Focus:
    """Add up what the question gives each chunk until `window` layers choose the same chunks.

    masses  (num_layers, num_chunks), attention of the question's rows to each chunk
    window  layers that must agree, at least 1

    Returns the chunks of the layer at which it stops, or of the last one.
    """
    summed = np.zeros(masses.shape[1])
    before: tuple[int, ...] = ()
    agreeing = 0
    for layer, mass in enumerate(np.asarray(masses, np.float64)):
        summed = summed + mass
        chunks = focus_of(summed, by)
        agreeing = agreeing + 1 if chunks == before else 1
        before = chunks
        if agreeing >= window:
            return Focus(chunks, layer)
    return Focus(before, None)


def focus_of(
    masses: NDArray[np.floating], by: Literal["entropy", "gap"] = "entropy"
) -> tuple[int, ...]:
    """The chunks above the cut of one sum, ascending.

    masses  (num_chunks,); sorted they fall, and the cut lies in one of the gaps

    All chunks where there is no gap: one chunk, or equal masses. The first of equal terms wins.
    """
    values = np.asarray(masses, np.float64)
    order = np.argsort(-values, kind="stable")
    gaps = -np.diff(values[order])
    if gaps.sum() <= 0:
        return tuple(range(len(values)))
    shares = gaps / gaps.sum()
    terms = _terms(shares) if by == "entropy" else shares
    # h_{i+1} - h_i of the cumulated terms is the term itself.
    cut = int(np.argmax(terms)) + 1
    return tuple(sorted(order[:cut].tolist()))


def _terms(shares: FloatArray) -> FloatArray:
    """-p log p, 0 where p is 0."""
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return -shares * logs
