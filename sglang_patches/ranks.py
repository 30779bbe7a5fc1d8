# SPDX-License-Identifier: Apache-2.0
"""The ranks of a server decide what is cached each for itself, and the same.

Under tensor parallelism every rank has a tree, a host tier, a disk tier and slots of its own. They
see the same requests in the same order, so they differ only where something depends on a clock or
a disk. That comes from a `RankGroup`, which gives all of them one answer. Should they differ all
the same, then a rank would read rows that another has not, so the server ends before such a batch
runs: see `RankCheck`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


class RanksDifferError(RuntimeError):
    """This rank has decided otherwise than the first one."""


class RankGroup:
    """Questions to all ranks. Each call waits for all, so all must make the same calls.

    A group of one answers at once.

    group  torch's process group of the ranks, on the CPU; None for one rank
    """

    def __init__(self, group: Any = None) -> None:
        self.size = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)
        self.is_first = self.rank == 0
        self._group = group
        self._first = 0 if group is None else dist.get_global_rank(group, 0)

    def of_first(self, values: Sequence[int]) -> list[int]:
        """What the first rank says."""
        return self._ask(values, lambda told: dist.broadcast(told, self._first, self._group))

    def lowest(self, values: Sequence[int]) -> list[int]:
        """The lowest of each value."""
        return self._ask(values, lambda told: dist.all_reduce(told, dist.ReduceOp.MIN, self._group))

    def highest(self, values: Sequence[int]) -> list[int]:
        """The highest of each value."""
        return self._ask(values, lambda told: dist.all_reduce(told, dist.ReduceOp.MAX, self._group))

    def gather(self, told: bytes | None) -> list[bytes | None]:
        """What each rank says, in their order."""
        if self.size == 1:
            return [told]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, told, self._group)
        return found

    def _ask(self, values: Sequence[int], exchange: Callable[[torch.Tensor], Any]) -> list[int]:
        if self.size == 1:
            return list(values)
        told = torch.tensor(values, dtype=torch.int64)
        exchange(told)
        return told.tolist()


class RankCheck:
    """Compares what this rank has decided with what the first one has."""

    def __init__(self, group: Any = None) -> None:
        self._group = RankGroup(group)
        self._digest = self._number = 0

    def note(self, slots: np.ndarray) -> None:
        """These slots were matched, loaded, or given up."""
        if self._group.size > 1:
            self._digest = zlib.crc32(np.ascontiguousarray(slots), self._digest)
            self._number += 1

    def compare(self) -> None:
        """Wait for all ranks. Raises RanksDifferError where this one differs from the first."""
        if self._group.size == 1:
            return
        number, digest = self._group.of_first([self._number, self._digest])
        if (number, digest) != (self._number, self._digest):
            raise RanksDifferError(
                f"rank {dist.get_rank()} has decided otherwise than rank 0 about what is cached "
                f"(digest {self._digest:08x} of {self._number} steps, and "
                f"{digest:08x} of {number}), so answers could be wrong: start "
                "the server again, and report this with its log"
            )
