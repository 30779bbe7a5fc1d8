# SPDX-License-Identifier: Apache-2.0
"""What any two of a changing set of requests have in common, as a matrix that grows with the set.

What is counted is up to the subclass: tokens (`depcache.plan.sharing`) or pieces
(`depcache.plan.pieces`). It keeps the holders of each thing as the bits of one int, so a newcomer
learns what it has in common with all others from the few different ints among its own things.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

_FIRST_ROWS = 16


class Members:
    """The members by row number; a row is given again after it was removed.

    shared  (rows, rows) int64, grows as needed: how much two members have in common. The diagonal
            is what a member has at all; unused rows are 0
    """

    def __init__(self) -> None:
        self.shared = np.zeros((_FIRST_ROWS, _FIRST_ROWS), np.int64)
        self._free_rows = list(range(_FIRST_ROWS))[::-1]

    def _take_row(self) -> int:
        if not self._free_rows:
            self._grow()
        return self._free_rows.pop()

    def _write_row(self, row: int, num_held: Mapping[int, int]) -> None:
        """Say what a newcomer has: how much, by the others that hold it, as the bits of an int."""
        common = np.zeros(len(self.shared), np.int64)
        for holders, num in num_held.items():
            for other in bits(holders):
                common[other] += num
        common[row] = sum(num_held.values())
        self.shared[row, :] = self.shared[:, row] = common

    def _give_row(self, row: int) -> None:
        self.shared[row, :] = self.shared[:, row] = 0
        self._free_rows.append(row)

    def _grow(self) -> None:
        size = len(self.shared)
        shared = np.zeros((2 * size, 2 * size), np.int64)
        shared[:size, :size] = self.shared
        self.shared = shared
        self._free_rows = list(range(size, 2 * size))[::-1]


def bits(mask: int) -> Iterator[int]:
    """Numbers of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
