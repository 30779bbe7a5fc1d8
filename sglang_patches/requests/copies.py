# SPDX-License-Identifier: Apache-2.0
"""Fused requests with the selector `stored`: rows as past prompts left them (Cache-Craft).

A flat prompt of such a request tells what its rows gave each other. Their KV stays in the cache of
plain prompts, on the way from the system over the rows before it, so that a later request reads it
as a row *behind* these (`depcache.prompt.behind`). A copy that has left the device is forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from depcache.prompt.behind import Behind, tokens_seen
from depcache.prompt.forest import Forest, IntArray
from depcache.select import selectable
from depcache.select.variants import MAX_ROWS_OF_PROMPT, Fix, Masses, Variants
from sglang_patches.requests.masses import MASSES, OVERHEADS

MAX_TOKENS = 2**15
"""System and context of the longest prompt that tells what its rows give each other: that takes as
long as its attention, and others wait for it."""

_COPIES = "depcache_copies"  # attribute of a request that tells the masses of its rows


class Copies:
    """The copies that one request reads.

    behind    what its rows stand behind; None where none stands behind anything
    selected  (K,) int64 indices of the tokens that are computed again, ascending
    is_all    these are all that could be, or none could
    """

    behind: Behind | None
    selected: IntArray
    is_all: bool

    def __init__(
        self,
        variants: Variants,
        rows: list[bytes],
        forest: Forest,
        tokens: IntArray,
        alpha: float,
    ) -> None:
        """Choose them by what is known.

        rows   key of each tree
        alpha  how careful one is
        """
        self._variants, self._rows, self._alpha = variants, rows, alpha
        self._forest, self._tokens = forest, tokens
        structure = forest.structure
        self._lens = np.diff([*structure.tree_starts, forest.task_start]).tolist()
        num_segments = np.diff([*structure.roots.tolist(), forest.num_segments])
        self._usable = (num_segments == 1).tolist()
        self._choose()

    def _choose(self) -> None:
        forest = self._forest
        self._fixes: list[Fix] = self._variants.choose(
            self._rows, self._lens, self._alpha, self._usable
        )
        variants = [fix.variant for fix in self._fixes]
        self.behind = None
        seen: IntArray | None = None
        if any(variants):
            self.behind = tuple(None if each is None else each.before for each in variants)
            seen = tokens_seen(self._tokens, forest, self.behind)
        changing = selectable(forest, seen)
        starts = forest.structure.tree_starts.tolist()
        chosen = [start + fix.tokens for start, fix in zip(starts, self._fixes, strict=True)]
        self.selected = np.intersect1d(np.concatenate(chosen), changing)
        self.is_all = len(self.selected) == len(changing)

    async def place(
        self, look: Callable[[], Awaitable[dict[str, Any]]], take: Callable[[Copies], None]
    ) -> dict[str, Any]:
        """Choose among copies that are there; what the last look has found.

        look  what the cache has of the request, see `sglang_patches.http.control`
        take  writes the copies into it
        """
        while True:
            take(self)
            found = await look()
            gone = [
                row
                for row, (fix, num) in enumerate(
                    zip(self._fixes, found["missing_by_tree"], strict=True)
                )
                if fix.variant is not None and num
            ]
            if not gone:
                return found
            for row in gone:
                variant = self._fixes[row].variant
                assert variant is not None
                self._variants.forget(self._rows[row], variant)
            self._choose()

    def use(self, obj: Any) -> None:
        """Note that these copies are read, and let the cache know what that is worth."""
        setattr(obj, OVERHEADS, [fix.cfo for fix in self._fixes])
        self._variants.use(self._rows, self._fixes)

    def ask_for_masses(self, obj: Any) -> None:
        """Let a request that is answered flat tell what its first rows give each other."""
        forest = self._forest
        if forest.task_start <= MAX_TOKENS:
            bounds = [*forest.structure.tree_starts.tolist(), forest.task_start]
            setattr(obj, MASSES, bounds[: MAX_ROWS_OF_PROMPT + 1])
            setattr(obj, _COPIES, self)

    def learn(self, told: list[dict[str, Any] | None]) -> None:
        """Remember what a flat prompt has told of its rows, of the first ones as many as told."""
        forest, num = self._forest, len(told)
        context = self._tokens[forest.system_len : forest.task_start]
        found = [None if each is None else Masses(**each) for each in told]
        self._variants.note(self._rows[:num], context, self._lens[:num], found)


def learn(obj: Any, report: dict[str, Any]) -> None:
    """Take what the rows of a request gave each other out of its report, and remember it."""
    told = report.pop(MASSES, None)
    copies: Copies | None = getattr(obj, _COPIES, None)
    if told is not None and copies is not None:
        copies.learn(told)
