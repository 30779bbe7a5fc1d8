# SPDX-License-Identifier: Apache-2.0
"""How many pieces of context any two requests have in common, kept up to date as they come and go.

A piece is the way from a root to the end of a segment, with what its tree is computed behind: all
that decides the KV at that end. Each table and each chunk of a prompt is one, however the prompt's
other rows cut it into segments; where rows begin alike, their common beginning is one more.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterator

from depcache.cache.radix import TOKEN_BYTES
from depcache.plan.members import Members
from depcache.plan.segments import SegmentTable


class _Piece:
    """One piece. `holders`: bit r is set if member r has it."""

    __slots__ = ("holders", "identity")

    def __init__(self, identity: Hashable) -> None:
        self.identity = identity
        self.holders = 0


class Pieces(Members):
    """Members whose `shared` counts pieces; the system is one, the task is none."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: dict[Hashable, _Piece] = {}
        self._held: dict[int, list[_Piece]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, namespace: Hashable, table: SegmentTable) -> int:
        """A new member; its row. O(its tokens) and its row of `shared`.

        What stands in `table` twice counts once.
        """
        row = self._take_row()
        held = list(dict.fromkeys(self._find(namespace, table)))
        self._held[row] = held
        num_held: defaultdict[int, int] = defaultdict(int)
        for piece in held:
            num_held[piece.holders] += 1
            piece.holders |= 1 << row
        self._write_row(row, num_held)
        return row

    def remove(self, row: int) -> None:
        """Forget a member. O(its segments)."""
        for piece in self._held.pop(row):
            piece.holders &= ~(1 << row)
            if not piece.holders:
                del self._pieces[piece.identity]
        self._give_row(row)

    def _find(self, namespace: Hashable, table: SegmentTable) -> Iterator[_Piece]:
        """The piece of each segment, missing ones added."""
        ways: list[hashlib.blake2b] = []
        for segment, (start, stop, parent) in enumerate(
            zip(table.starts, table.stops, table.parents, strict=True)
        ):
            if parent >= 0:
                way = ways[parent].copy()
            else:
                behind = table.behind.get(segment, b"")
                way = hashlib.blake2b(len(behind).to_bytes(8, "little") + behind)
            way.update(table.hidden.get(segment, b""))
            way.update(table.key[start * TOKEN_BYTES : stop * TOKEN_BYTES])
            ways.append(way)
            # A digest will do: it only orders the queue, no KV is found by it.
            identity = namespace, way.digest()
            piece = self._pieces.get(identity)
            if piece is None:
                piece = self._pieces[identity] = _Piece(identity)
            yield piece
