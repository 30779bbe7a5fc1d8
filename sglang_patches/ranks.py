# SPDX-License-Identifier: Apache-2.0
"""Ranks decide what is cached each for itself, and the same; here they find out when they do not.

Under tensor parallelism every rank has a tree, a host tier and slots of its own. They see the same
requests in the same order, and nothing they decide by depends on a clock or a disk: what is in
host memory is loaded always, and a disk tier is refused. Should they differ all the same, then a
rank would read rows that another has not, so the server ends before such a batch runs.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


class RanksDifferError(RuntimeError):
    """This rank has decided otherwise than the first one."""


class RankCheck:
    """Compares what this rank has decided with what the first one has.

    group  torch's process group of the ranks, on the CPU; None, or a group of one: nothing to do
    """

    def __init__(self, group: Any = None) -> None:
        is_alone = group is None or dist.get_world_size(group) == 1
        self._group = None if is_alone else group
        self._first = 0 if group is None else dist.get_global_rank(group, 0)
        self._digest = self._number = 0

    def note(self, slots: np.ndarray) -> None:
        """These slots were matched, loaded, or given up."""
        if self._group is not None:
            self._digest = zlib.crc32(np.ascontiguousarray(slots), self._digest)
            self._number += 1

    def compare(self) -> None:
        """Wait for all ranks. Raises RanksDifferError where this one differs from the first."""
        if self._group is None:
            return
        ours = torch.tensor([self._number, self._digest])
        firsts = ours.clone()
        dist.broadcast(firsts, src=self._first, group=self._group)
        if not torch.equal(ours, firsts):
            raise RanksDifferError(
                f"rank {dist.get_rank()} has decided otherwise than rank 0 about what is cached "
                f"(digest {self._digest:08x} of {self._number} steps, and "
                f"{int(firsts[1]):08x} of {int(firsts[0])}), so answers could be wrong: start "
                "the server again, and report this with its log"
            )
