# SPDX-License-Identifier: Apache-2.0
"""Test prompts in which tables see sets of other tables, told from these sets.

Written from the definitions, as `tests.helpers.prompts`, and without the code under test.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tests.helpers.prompts import LAYOUTS, TreePrompt, random_tokens

Table = tuple[list[int], frozenset[int]]
"""(tokens, numbers of the tables that it sees, with all that these see)"""


class JoinedPrompt(TreePrompt):
    """[system | tables | task]. A table that sees one chain is below it; else it is joined.

    tables   all of a schema
    present  those of the prompt, in the order in which they stand as far as what they see lets them
    owners   (num_tokens,) the table of each token, -1 for the system, None for the task
    joins    as on the wire
    """

    def __init__(
        self,
        system: list[int],
        tables: list[Table],
        present: list[int],
        task: list[int],
        layout: str = "tree",
    ) -> None:
        assert layout in LAYOUTS
        self.system, self.task, self.layout = system, task, layout
        self.trees = [(tables[table][0], []) for table in present]
        self._tables = tables
        self.sees = {table: tables[table][1].intersection(present) for table in present}
        above = {table: self._nearest(table) for table in present}
        self._place(present, above)
        self._fill()

    def _nearest(self, table: int) -> list[int]:
        seen = self.sees[table]
        return sorted(a for a in seen if not any(a in self.sees[b] for b in seen))

    def _place(self, present: list[int], above: dict[int, list[int]]) -> None:
        """Segments in pre-order: what a tree is joined to stands before it."""
        order: list[int] = []
        left = list(present)
        while left:  # a whole tree at a time
            root = next(t for t in left if len(above[t]) != 1 and self.sees[t] <= set(order))
            stack = [root]
            while stack:
                table = stack.pop()
                order.append(table)
                left.remove(table)
                stack += [t for t in reversed(left) if above[t] == [table]]
        number = {table: segment for segment, table in enumerate(order)}
        self.order = order
        self.root: dict[int, int] = {}
        for table in order:
            self.root[table] = self.root[above[table][0]] if len(above[table]) == 1 else table
        self.segment_lens = [len(self._tables[table][0]) for table in order]
        self.segment_parents = [
            number[above[table][0]] if len(above[table]) == 1 else -1 for table in order
        ]
        self.joins = [
            [number[table], *sorted(number[a] for a in above[table])]
            for table in order
            if len(above[table]) > 1
        ]

    def _fill(self) -> None:
        first = len(self.system)
        self.tokens, self.positions = list(self.system), list(range(first))
        self.keys = [tuple(self.system[: i + 1]) for i in range(first)]
        self.parents = list(range(-1, first - 1))
        self.owners: list[int | None] = [-1] * first
        depths: dict[int, int] = {}
        last: dict[int, int] = {}
        offset = height = 0  # of the tree, and of the one before
        for table, parent in zip(self.order, self.segment_parents, strict=True):
            ids, seen = self._tables[table][0], self.sees[table]
            depths[table] = max((depths[s] + len(self._tables[s][0]) for s in seen), default=0)
            root = self.root[table]
            if root == table:
                offset, height = offset + height, 0
            inside = depths[table] - depths[root]
            height = max(height, inside + len(ids))
            start = {
                "tree": first + depths[table],
                "staggered": first + offset + inside,
                "sequential": len(self.tokens),
            }[self.layout]
            above = self.keys[last[self.order[parent]]] if parent >= 0 else self._behind(root)
            assert above is not None
            for k, token in enumerate(ids):
                self.parents.append(len(self.tokens) - 1 if k else last.get(self._up(parent), -1))
                self.tokens.append(token)
                self.positions.append(start + k)
                self.keys.append((*above, *ids[: k + 1]))
                self.owners.append(table)
            last[table] = len(self.tokens) - 1
        position = max(self.positions, default=-1) + 1
        for k, token in enumerate(self.task):
            self.parents.append(len(self.tokens) - 1)
            self.tokens.append(token)
            self.positions.append(position + k)
            self.keys.append(None)
            self.owners.append(None)

    def _up(self, parent: int) -> int:
        return self.order[parent] if parent >= 0 else -1

    def _behind(self, root: int) -> tuple[Any, ...]:
        """What stands before a tree on its way, as part of the key of its tokens."""
        seen = self.sees[root]
        if not seen:
            return tuple(self.system)
        return (tuple(self.system), frozenset(self._meaning(table) for table in seen))

    def _meaning(self, table: int) -> Any:
        seen = frozenset(self._meaning(other) for other in self.sees[table])
        return tuple(self._tables[table][0]), seen

    def params(self) -> dict[str, Any]:
        params = {
            "depcache_version": 2,
            "depcache_layout": self.layout,
            "depcache_system_len": len(self.system),
            "depcache_segment_lens": self.segment_lens,
            "depcache_segment_parents": self.segment_parents,
        }
        return {**params, "depcache_segment_joins": self.joins} if self.joins else params

    def mask(self, num_new: int = 0) -> np.ndarray:
        """A token of a table attends to the system, to what its table sees, and to its table."""
        mask = np.tri(self.num_tokens + num_new, dtype=bool)
        for index in range(len(self.system), self.num_context):
            table = self.owners[index]
            assert table is not None
            shown = {-1, table, *self.sees[table]}
            mask[index, : self.num_context] &= [o in shown for o in self.owners[: self.num_context]]
        return mask


def random_schema(rng: random.Random, num_tables: int, num_begin: int = 2) -> list[Table]:
    """Tables that begin alike, each seeing what it refers to: joins, diamonds, and units.

    A unit is of tables that refer to each other: each sees those of it that stand before it, and
    what any of them refers to; others see all of it.
    """
    begin = random_tokens(rng, num_begin)
    units: list[list[int]] = []
    for table in range(num_tables):
        if units and rng.random() < 0.2:
            units[-1].append(table)
        else:
            units.append([table])
    seen_with: list[frozenset[int]] = []  # of each unit: it and what it sees
    closures: list[frozenset[int]] = []
    for number, unit in enumerate(units):
        refers = rng.sample(range(number), min(number, rng.choice([0, 0, 1, 2, 2, 3])))
        above = frozenset[int]().union(*(seen_with[other] for other in refers))
        closures += [above.union(unit[:place]) for place in range(len(unit))]
        seen_with.append(above.union(unit))
    # What differs comes behind, so that no table is the beginning of another.
    return [
        ([*begin, 100 + table, *random_tokens(rng, rng.randrange(0, 5))], closure)
        for table, closure in enumerate(closures)
    ]


def diamonds() -> list[Table]:
    """3 sees 1 and 2; 4 is below 3; 5 sees 3 and 0; 6 sees 4 and 5; 7 is below 1."""
    refers: list[set[int]] = [set(), set(), set(), {1, 2}, {3}, {0, 3}, {4, 5}, {1}]
    closures: list[frozenset[int]] = []
    for each in refers:
        closures.append(frozenset(each).union(*(closures[other] for other in each)))
    return [
        ([20, 21, 100 + table, 30 + table, 40 + table][: 3 + table % 3], closure)
        for table, closure in enumerate(closures)
    ]
