# SPDX-License-Identifier: Apache-2.0
"""Trees that are joined to earlier ones: what they see, whole and without repetition.

A forest has one way down to each segment. What depends on two things that do not depend on each
other, like a table with two foreign keys (TableCache, section 4.1), cannot hang below both: it is
the root of a tree of its own, with a list of earlier segments that it sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

Joins = tuple[tuple[int, tuple[int, ...]], ...]

MAX_JOINED = 4096
"""Most segments that a tree may be joined to, with all that these see; more is damage."""

MAX_JOINED_IN_ALL = 2**17
"""The same, summed over the trees of a prompt: it bounds the work before anything is planned."""

MAX_JOINED_TOKENS = 2**22
"""Most tokens that all trees of a prompt may be joined to, each tree counted by itself."""


class StructureError(ValueError):
    """The segments are in no order that a prompt can have; the message is for its author."""


def close_joins(
    parents: np.ndarray, joins: Mapping[int, Sequence[int]]
) -> tuple[Joins, dict[int, list[int]]]:
    """The joins in ascending order, and of each root all that its tree is joined to.

    parents  (S,) int64, parent of each segment, -1 for roots
    joins    root -> segments that it sees

    What a seen segment sees is seen too: the nodes above it, and what its tree is joined to.
    Returns the second as ascending segment numbers by root. Raises StructureError when a join is
    not that of a root, or sees nothing, itself, something later, something twice, or something
    that another of its segments sees already.
    """
    if not joins:
        return (), {}
    above = parents.tolist()
    in_all = 0
    root_of: list[int] = []
    for segment, parent in enumerate(above):
        root_of.append(segment if parent < 0 else root_of[parent])
    joined: dict[int, list[int]] = {}

    for root in sorted(joins):
        seen = list(joins[root])
        if not 0 <= root < len(above) or above[root] >= 0:
            raise StructureError(
                f"segment {root} is joined to others but is no root: join only segments whose "
                "parent is -1"
            )
        if len(seen) > MAX_JOINED:
            raise StructureError(
                f"segment {root} is joined to {len(seen)} segments, more than {MAX_JOINED}: "
                "join it to fewer"
            )
        if not seen or any(a >= b for a, b in pairwise(seen)):
            raise StructureError(
                f"segment {root} is joined to {seen[:8]}: name at least one segment, each once, "
                "in ascending order"
            )
        if seen[0] < 0 or seen[-1] >= root:
            raise StructureError(
                f"segment {root} is joined to {seen[0] if seen[0] < 0 else seen[-1]}: join it only "
                "to segments that come before it"
            )
        implied: set[int] = set()
        for tree in {root_of[segment] for segment in seen}:
            implied.update(joined.get(tree, ()))
        for segment in seen:
            while (segment := above[segment]) >= 0 and segment not in implied:
                implied.add(segment)
        if not implied.isdisjoint(seen):
            raise StructureError(
                f"segment {root} is joined to {min(implied.intersection(seen))}, which it sees "
                "through another that it is joined to: leave it out"
            )
        closure = sorted(implied.union(seen))
        if len(closure) > MAX_JOINED:
            raise StructureError(
                f"segment {root} is joined to {len(closure)} segments, more than {MAX_JOINED}: "
                "join it to fewer"
            )
        in_all += len(closure)
        if in_all > MAX_JOINED_IN_ALL:
            raise StructureError(
                f"the trees up to segment {root} are joined to {in_all} segments, more than "
                f"{MAX_JOINED_IN_ALL}: join them to fewer"
            )
        joined[root] = closure
    return tuple((root, tuple(joins[root])) for root in sorted(joins)), joined
