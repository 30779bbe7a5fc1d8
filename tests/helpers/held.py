# SPDX-License-Identifier: Apache-2.0
"""A cache tree beside a plain account of which slot holds what, for tests that compare the two."""

from __future__ import annotations

from typing import Any

import numpy as np

from depcache.cache import KVTree, Node, TierCopies
from depcache.cache.invariants import check_tree
from tests.helpers.keeper import Keeper


class HeldServer:
    """A tree with a host tier; slots count up.

    held  what the model says that is cached -> its slot
    """

    def __init__(self) -> None:
        self.tree = KVTree()
        self.copies = TierCopies(self.tree, "host")
        self.tree.tiers.append(Keeper(self.copies, self.keep))
        self.held: dict[tuple[Any, ...], int] = {}
        self.num_slots = 0

    def keep(self, leaving: list[tuple[Node, Any]]) -> None:
        """Copy what leaves the device."""
        for node, slots in leaving:
            if "host" not in node.copies:
                self.copies.add(node, slots)

    def evict(self, num_tokens: int) -> None:
        self.note_freed(self.tree.tiers.evict(self.tree, num_tokens))

    def note_freed(self, freed: list[np.ndarray]) -> None:
        """Strike out what was in these slots."""
        gone = set(np.concatenate(freed or [np.empty(0)]).tolist())
        self.held = {key: slot for key, slot in self.held.items() if slot not in gone}
        check_tree(self.tree)
