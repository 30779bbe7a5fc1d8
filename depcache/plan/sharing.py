# SPDX-License-Identifier: Apache-2.0
"""How many tokens any two requests share, kept up to date while requests come and go.

A prefix tree over the tokens of all members, with no KV behind it. Every run of tokens knows
its holders, so the cost of a newcomer does not grow with what the others are made of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

from depcache.cache.radix import TOKEN_BYTES, RadixNode, common_prefix_tokens, first_token
from depcache.plan.members import Members, bits
from depcache.plan.segments import SegmentTable


class _Run(RadixNode["_Run"]):
    """A run of tokens with one parent. `holders`: bit r is set if member r has these tokens."""

    __slots__ = ("holders",)

    def __init__(self, key: bytes, parent: _Run | None) -> None:
        super().__init__(key, parent)
        self.holders = 0


class Sharing(Members):
    """Members whose `shared` counts tokens, from a root down.

    System and context count, the task does not: nobody else can use it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._roots: dict[tuple[Hashable, bytes], _Run] = {}
        self._runs: dict[int, list[_Run]] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, namespace: Hashable, table: SegmentTable) -> int:
        """A new member; its row. O(its segments) and its row of `shared`.

        What stands in `table` twice, where segments begin alike, counts once.
        """
        row = self._take_row()
        runs = self._walk(namespace, table)
        if table.has_twins:  # the first walk may have split runs that it had passed before
            runs = list(dict.fromkeys(self._walk(namespace, table)))
        self._runs[row] = runs
        num_tokens: defaultdict[int, int] = defaultdict(int)
        for run in runs:
            num_tokens[run.holders] += run.num_tokens
            run.holders |= 1 << row
        self._write_row(row, num_tokens)
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
        self._give_row(row)

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
        for row in bits(run.holders):
            self._runs[row].append(upper)
        return upper
