# SPDX-License-Identifier: Apache-2.0
"""How many pieces of context any two requests have in common, kept up to date as they come and go.

A piece is a segment with all that its KV is decided by: what is above it, and what a joined tree is
computed behind. In a prompt whose rows stand whole (tables, chunks) each row is one. Where rows are
merged it is a segment as this prompt cuts it, so the same facts beside others may count as others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

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
        """A new member; its row. O(its segments) and its row of `shared`.

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

    def _find(self, namespace: Hashable, table: SegmentTable) -> list[_Piece]:
        """The piece of each segment, missing ones added."""
        found: list[_Piece] = []
        for segment, (start, stop, parent) in enumerate(
            zip(table.starts, table.stops, table.parents, strict=True)
        ):
            # Whoever holds a piece holds the one above it, so that one stays the same object.
            above = found[parent] if parent >= 0 else (namespace, table.behind.get(segment, b""))
            identity = (
                above,
                table.hidden.get(segment, b""),
                table.key[start * TOKEN_BYTES : stop * TOKEN_BYTES],
            )
            piece = self._pieces.get(identity)
            if piece is None:
                piece = self._pieces[identity] = _Piece(identity)
            found.append(piece)
        return found
