# SPDX-License-Identifier: Apache-2.0
"""Copies of a row that past prompts left, each behind other rows, and which of them to take.

A flat prompt computes each of its rows behind the rows before it. Such a copy, a *variant*, may
stand in for the row in another prompt, with those of its tokens computed again that leaned most on
rows before it (Cache-Craft, section 3). Which copy, and how many tokens, its CFO says
(`depcache.select.cachecraft`).

Kept here is what is known of them, not their KV: that is in the cache of plain prompts, as the way
from the system to the row.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from depcache.prompt.forest import IntArray
from depcache.select.cachecraft import (
    adjusted_overlap,
    contextuality,
    fix_overhead,
    num_to_fix,
    overhead_alone,
    worth_of_use,
)

MAX_OF_ROW = 5
"""Variants of one row, as in Cache-Craft."""

MAX_ROWS = 2_000
"""Rows that variants are known of; those that were longest unseen are forgotten."""

MAX_ROWS_OF_PROMPT = 64
"""Rows of a prompt, from its beginning, that leave variants and may be read as such."""

MAX_BEFORE = 2**16
"""Tokens that all variants of a prompt stand behind, each row's counted: they travel with it."""


@dataclass(frozen=True, slots=True)
class Masses:
    """What the tokens of one row gave others in the prompt that computed it, in mean over layers
    and heads.

    inter  to each row before it
    intra  to its own tokens, without each to itself
    order  (row_len,) its tokens by what they gave rows before it, the most first
    """

    inter: Sequence[float]
    intra: float
    order: Sequence[int]


@dataclass(slots=True, eq=False)
class Variant:
    """One row as a past prompt left it.

    prefix         keys of the rows before it there
    inter          attention to each of them
    contextuality  its CCI
    order          see `Masses`
    context        tokens of that prompt's context, shared with its other rows
    start          of the row in it
    frequency      what its uses were worth (section 3.4)
    """

    prefix: tuple[bytes, ...]
    inter: Mapping[bytes, float]
    contextuality: float
    order: IntArray = field(repr=False)
    context: IntArray = field(repr=False)
    start: int
    frequency: float = 0.0

    @property
    def before(self) -> tuple[int, ...]:
        """The tokens between the system and the row."""
        return tuple(self.context[: self.start].tolist())

    def overhead(self, before: Sequence[bytes], alpha: float) -> float:
        """Its CFO where these rows stand before it, 0 to 1."""
        overlap = adjusted_overlap(self.inter, self.prefix, before)
        return fix_overhead(self.contextuality, overlap, alpha)


@dataclass(frozen=True, slots=True)
class Fix:
    """Which copy of a row is taken, and what of it is computed again.

    cfo      the share
    variant  None: the row alone behind the system
    tokens   (num_to_fix,) int64 numbers of the row's tokens, the most urgent first
    """

    cfo: float
    variant: Variant | None
    tokens: IntArray = field(repr=False)


class Variants:
    """Variants by row. Rows are known by keys that hold their system and tenant too."""

    def __init__(self, max_of_row: int = MAX_OF_ROW, max_rows: int = MAX_ROWS) -> None:
        self._rows: OrderedDict[bytes, list[Variant]] = OrderedDict()
        self._max_of_row, self._max_rows = max_of_row, max_rows

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def note(
        self,
        rows: Sequence[bytes],
        context: IntArray,
        lens: Sequence[int],
        found: Sequence[Masses | None],
    ) -> None:
        """Remember the rows of a flat prompt.

        rows     key of each
        context  (context_len,) int64 tokens, the rows one behind the other
        lens     tokens of each row
        found    None for a row that was not computed there
        """
        starts = [0, *np.cumsum(lens).tolist()]
        for number, (row, masses) in enumerate(zip(rows, found, strict=True)):
            if masses is None or not number:  # the first is what it is alone
                continue
            prefix = tuple(rows[:number])
            variant = Variant(
                prefix=prefix,
                inter=dict(zip(prefix, masses.inter, strict=True)),
                contextuality=contextuality(
                    masses.inter, masses.intra, lens[:number], lens[number]
                ),
                order=np.array(masses.order, np.int64),
                context=context,
                start=starts[number],
            )
            self._add(row, variant)

    def _add(self, row: bytes, variant: Variant) -> None:
        known = [each for each in self._rows.get(row, ()) if each.prefix != variant.prefix]
        while len(known) >= self._max_of_row:
            known.remove(min(known, key=lambda each: each.frequency))
        self._rows[row] = [*known, variant]
        self._rows.move_to_end(row)
        while len(self._rows) > self._max_rows:
            self._rows.popitem(last=False)

    def forget(self, row: bytes, variant: Variant) -> None:
        """Its KV is gone."""
        left = [each for each in self._rows.get(row, ()) if each is not variant]
        if left:
            self._rows[row] = left
        else:
            self._rows.pop(row, None)

    def choose(
        self, rows: Sequence[bytes], lens: Sequence[int], alpha: float, usable: Sequence[bool]
    ) -> list[Fix]:
        """The copy of least CFO for each row of a prompt; where two are equal, the row alone.

        usable  False for a row of which only the copy alone may be taken
        """
        fixes: list[Fix] = []
        num_before = 0
        for number, (row, length, is_usable) in enumerate(zip(rows, lens, usable, strict=True)):
            is_usable = is_usable and number < MAX_ROWS_OF_PROMPT
            least = overhead_alone(not number, alpha)
            best: Variant | None = None
            for variant in self._rows.get(row, ()) if is_usable else ():
                cfo = variant.overhead(rows[:number], alpha)
                if cfo < least and num_before + variant.start <= MAX_BEFORE:
                    least, best = cfo, variant
            num_before += 0 if best is None else best.start
            order = np.arange(length) if best is None else best.order
            fixes.append(Fix(least, best, order[: num_to_fix(least, length)]))
        return fixes

    def use(self, rows: Sequence[bytes], fixes: Sequence[Fix]) -> None:
        """These copies are taken: note what that is worth."""
        for row, fix in zip(rows, fixes, strict=True):
            if fix.variant is not None:
                fix.variant.frequency += worth_of_use(fix.cfo)
            if row in self._rows:
                self._rows.move_to_end(row)
