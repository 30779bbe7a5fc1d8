# SPDX-License-Identifier: Apache-2.0
"""KV slots without KV: what a server's allocator does, on the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class SimulatedSlots:
    """`capacity` slots, numbered from 0. The free ones are a stack."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = np.arange(capacity, dtype=np.int64)
        self.num_free = capacity

    def take(self, count: int) -> NDArray[np.int64]:
        """(count,) int64 slots; ValueError when there are not so many."""
        if count > self.num_free:
            raise ValueError(f"{count} slots were asked for, but {self.num_free} are free")
        self.num_free -= count
        return self._free[self.num_free : self.num_free + count].copy()

    def give(self, pieces: Sequence[NDArray[np.int64]]) -> None:
        """Slots that are free again."""
        for slots in pieces:
            stop = self.num_free + len(slots)
            if stop > self.capacity:
                raise ValueError(f"{len(slots)} slots came back, but only {self.capacity} exist")
            self._free[self.num_free : stop] = slots
            self.num_free = stop
