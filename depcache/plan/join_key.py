# SPDX-License-Identifier: Apache-2.0
"""What the KV of a joined tree was computed behind, as bytes that are equal only for equals.

In layout `tree` the KV of a tree that is joined to others is a function of its tokens, the system
and the *set* of what it sees: not of the order of these in the prompt, not of what else stands
there, and not of how the prompt's other paths cut them into segments.

A *unit* is a way from the root of a tree to a segment that a join sees. The key holds the system
and each unit that is seen, directly or not, with the numbers of the units that its own tree is
joined to. Units come in an order that their contents alone decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from depcache.cache.radix import TOKEN_BYTES, to_key


def make_join_keys(
    system: bytes,
    way_to: Callable[[int], bytes],
    root_of: Sequence[int],
    joins: Sequence[tuple[int, Sequence[int]]],
) -> dict[int, bytes]:
    """The key of each joined root.

    system   raw int32 tokens of the system
    way_to   raw int32 tokens from the root of a segment's tree to the segment's end
    root_of  (S,) the root of each segment's tree
    joins    (root, segments that it sees), ascending, as `Structure.joins`

    O(units that each of them sees) Python.
    """
    seen_by = dict(joins)
    levels: dict[int, int] = {}  # of the units of a tree, by its root: above all that they see
    ways: dict[int, bytes] = {}
    units_of: dict[int, set[int]] = {}
    keys: dict[int, bytes] = {}
    for root, seen in joins:
        levels[root] = 1 + max(levels.get(root_of[unit], 0) for unit in seen)
        units = set(seen).union(*(units_of.get(root_of[unit], ()) for unit in seen))
        units_of[root] = units
        for unit in seen:
            ways[unit] = way_to(unit)
        keys[root] = _write(
            system,
            {unit: levels.get(root_of[unit], 0) for unit in units},
            ways,
            {unit: seen_by.get(root_of[unit], ()) for unit in units},
        )
    return keys


def _write(
    system: bytes,
    levels: dict[int, int],
    ways: dict[int, bytes],
    sees: dict[int, Sequence[int]],
) -> bytes:
    """System and units, each with its length before it, so that no two sets read alike."""
    parts = [_ints(len(system) // TOKEN_BYTES), system, _ints(len(levels))]
    by_level: dict[int, list[int]] = {}
    for unit, level in levels.items():
        by_level.setdefault(level, []).append(unit)
    number: dict[int, int] = {}
    for _, units in sorted(by_level.items()):
        # What a unit sees is on lower levels, so its numbers are known.
        numbers = {unit: sorted(number[other] for other in sees[unit]) for unit in units}
        units.sort(key=lambda unit: (ways[unit], numbers[unit]))
        for unit in units:
            number[unit] = len(number)
            way = ways[unit]
            parts += (
                _ints(len(numbers[unit]), *numbers[unit], len(way) // TOKEN_BYTES),
                way,
            )
    return b"".join(parts)


def _ints(*values: int) -> bytes:
    return to_key(np.array(values))
