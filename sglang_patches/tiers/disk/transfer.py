# SPDX-License-Identifier: Apache-2.0
"""A value between host memory and disk, while its node may split, move or go."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from depcache.cache import Node


@dataclass(slots=True, eq=False)
class Transfer:
    """A value on its way.

    nodes       the run, parents first: more than one where it was split since
    home        of the first token, when it began
    owns_slots  the slots are freed when it ends, because no copy in host memory has them
    held        slots of copies that were given up while a store still read them
    is_void     what comes of it is of no use
    is_orphan   the tree was reset since
    """

    nodes: list[Node]
    slots: np.ndarray
    home: int
    owns_slots: bool
    held: list[np.ndarray] = field(default_factory=list)
    is_void: bool = False
    is_orphan: bool = False

    @property
    def is_valid(self) -> bool:
        """Whether all of the run is in the tree still, and means the same positions."""
        if self.is_void:
            return False
        home = self.home
        for node in self.nodes:
            if node.parent is None or node.home != home:
                return False
            home += node.num_tokens
        return True
