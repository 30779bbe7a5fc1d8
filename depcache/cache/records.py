# SPDX-License-Identifier: Apache-2.0
"""What a KV tree returns, counts and tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from depcache.cache.node import Node


@dataclass(frozen=True, slots=True)
class Insertion:
    """What `KVTree.insert` did with the offered tokens.

    num_present    leading tokens that were in the tree already
    present_slots  (num_present,) int64 their slots in the tree
    node           deepest node of the inserted run; the start node when the run was empty
    num_added      tokens whose offered slots the tree now owns (behind the present ones)
    """

    num_present: int
    present_slots: np.ndarray
    node: Node
    num_added: int


@dataclass(slots=True)
class TreeCounters:
    """Running totals, in tokens unless the name says otherwise."""

    inserted: int = 0
    evicted: int = 0
    evicted_nodes: int = 0


class Watcher(Protocol):
    """Is told what happens in a tree, and changes nothing."""

    def note_tick(self, tick: int) -> None:
        """The tree's clock moved to `tick`."""
        ...

    def note_eviction(self, tier: str, node: Node) -> None:
        """`node` loses its KV in `tier`, because the room is needed."""
        ...
