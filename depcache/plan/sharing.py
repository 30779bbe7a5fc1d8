# SPDX-License-Identifier: Apache-2.0
"""How many tokens any two requests share, kept up to date while requests come and go.

A prefix tree over the tokens of all members, with no KV behind it. Every run of tokens knows
its holders as the bits of one int, so a newcomer learns what it shares with all others from
the few different ints on its runs: its cost does not grow with what the others are made of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator

import numpy as np
from numpy.typing import NDArray

from depcache.cache.radix import TOKEN_BYTES, RadixNode, common_prefix_tokens, first_token
from depcache.plan.segments import SegmentTable

_FIRST_ROWS = 16


class _Run(RadixNode["_Run"]):
    """A run of tokens with one parent. `holders`: bit r is set if member r has these tokens."""

    __slots__ = ("holders",)

    def __init__(self, key: bytes, parent: _Run | None) -> None:
        super().__init__(key, parent)
        self.holders = 0


class Sharing:
    """The members by row number; a row is given again after `remove`.

    shared  (rows, rows) int64, grows as needed: tokens that two members have in common, from a
            root down. The diagonal is the number of a member's own tokens; unused rows are 0

    System and context count, the task does not: nobody else can use it.
    """

    def __init__(self) -> None:
        self.shared = np.zeros((_FIRST_ROWS, _FIRST_ROWS), np.int64)
        self._free_rows = list(range(_FIRST_ROWS))[::-1]
        self._roots: dict[tuple[Hashable, bytes], _Run] = {}
        self._runs: dict[int, list[_Run]] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, namespace: Hashable, table: SegmentTable) -> int:
        """A new member; its row. O(its segments) and its row of `shared`.

        What stands in `table` twice, where segments begin alike, counts once.
        """
        if not self._free_rows:
            self._grow()
        row = self._free_rows.pop()
        runs = self._walk(namespace, table)
        if table.has_twins:  # the first walk may have split runs that it had passed before
            runs = list(dict.fromkeys(self._walk(namespace, table)))
        self._runs[row] = runs
        num_tokens: defaultdict[int, int] = defaultdict(int)
        for run in runs:
            num_tokens[run.holders] += run.num_tokens
            run.holders |= 1 << row
        common = self._by_row(num_tokens)
        common[row] = sum(num_tokens.values())
        self.shared[row, :] = self.shared[:, row] = common
        return row

    def remove(self, row: int) -> None:
        """Forget a member. O(its segments)."""
        for run in self._runs.pop(row):
            run.holders &= ~(1 << row)
            if not run.holders and run.parent is not None:
                del run.parent.children[run.first_token]
        for identity, root in list(self._roots.items()):
            if not root.children:
                del self._roots[identity]
        self.shared[row, :] = self.shared[:, row] = 0
        self._free_rows.append(row)

    def _by_row(self, num_tokens: dict[int, int]) -> NDArray[np.int64]:
        """Tokens by their holders -> (rows,) int64 tokens by holder."""
        found = np.zeros(len(self.shared), np.int64)
        for holders, num in num_tokens.items():
            for row in _bits(holders):
                found[row] += num
        return found

    def _walk(self, namespace: Hashable, table: SegmentTable) -> list[_Run]:
        """The runs that make up `table`, missing ones added, parents before children."""
        runs: list[_Run] = []
        ends: list[_Run] = []
        for segment, (start, stop, parent) in enumerate(
            zip(table.starts, table.stops, table.parents, strict=True)
        ):
            if parent < 0:
                identity = namespace, table.behind.get(segment, b"")
                run = self._roots.setdefault(identity, _Run(b"", None))
            else:
                run = ends[parent]
            hidden = table.hidden.get(segment, b"")
            for rest in (hidden, table.key[start * TOKEN_BYTES : stop * TOKEN_BYTES]):
                while rest:
                    token = first_token(rest)
                    child = run.children.get(token)
                    if child is None:
                        child = run.children[token] = _Run(rest, run)
                    elif not rest.startswith(child.key):
                        child = self._split(child, common_prefix_tokens(child.key, rest))
                    runs.append(child)
                    run = child
                    rest = rest[len(child.key) :]
            ends.append(run)
        return runs

    def _split(self, run: _Run, num_tokens: int) -> _Run:
        """Cut `run` after `num_tokens`; the new upper run. All holders hold both halves."""
        upper = _Run(run.key[: num_tokens * TOKEN_BYTES], run.parent)
        upper.holders = run.holders
        run.cut(upper)
        for row in _bits(run.holders):
            self._runs[row].append(upper)
        return upper

    def _grow(self) -> None:
        size = len(self.shared)
        shared = np.zeros((2 * size, 2 * size), np.int64)
        shared[:size, :size] = self.shared
        self.shared = shared
        self._free_rows = list(range(size, 2 * size))[::-1]


def _bits(mask: int) -> Iterator[int]:
    """Numbers of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
