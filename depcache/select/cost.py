# SPDX-License-Identifier: Apache-2.0
"""Whether a request is fused or answered as flat prompt, by the tokens that each way computes.

A prefix cache computes little where prompts repeat, and fusing never pays where no row comes again.
So the two are compared, and a row that nobody has computed is settled where it will be of use.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

WINDOW_ROWS = 1_000
"""Rows whose share of acquaintances forecasts that of the next."""

MAX_KNOWN = 200_000
"""Rows that are remembered, by their keys alone."""


class ReuseForecast:
    """How often rows come again: which have been met, cached or not, and what share lately.

    It goes by what was asked for, not by what the cache kept, so it does not depend on the choices
    that are made with it.
    """

    def __init__(self, window: int = WINDOW_ROWS, max_known: int = MAX_KNOWN) -> None:
        self._known: OrderedDict[Hashable, None] = OrderedDict()
        self._recent: deque[bool] = deque(maxlen=window)
        self._max_known = max_known
        self._num_again = 0

    @property
    def share(self) -> float:
        """The share of the rows met lately that had been met before; 0 without any."""
        return self._num_again / len(self._recent) if self._recent else 0.0

    def meet(self, row: Hashable, *, is_cached: bool = False) -> bool:
        """Note a row; whether it had been met before. A row that is cached was met, by whomever."""
        is_again = is_cached or row in self._known
        self._known[row] = None
        self._known.move_to_end(row)
        if len(self._known) > self._max_known:
            self._known.popitem(last=False)
        if len(self._recent) == self._recent.maxlen:
            self._num_again -= self._recent[0]
        self._recent.append(is_again)
        self._num_again += is_again
        return is_again


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do with a fused request.

    is_fused  False: it is answered as the flat prompt that it is
    settled   numbers of the rows to settle first
    """

    is_fused: bool
    settled: tuple[int, ...]


def choose(
    *,
    missing: Sequence[int],
    num_missing_system: int,
    was_met: Sequence[bool],
    num_selected: int,
    num_context: int,
    num_prefix: int,
    num_task: int,
    share: float,
    forecast: float,
    is_pinned: bool,
    needs_scores: bool = False,
) -> Choice:
    """The cheaper way in tokens computed, now and later.

    missing       per row the tokens that are on no device
    num_missing_system  the same of the system, which each way computes once
    was_met       per row whether it was asked for before
    num_selected  tokens that are computed again
    num_context   tokens of system and context
    num_prefix    of these, what a plain prompt would find cached
    num_task      tokens of the task
    share         recomputed share, 0 to 1
    forecast      `ReuseForecast.share`
    is_pinned     fuse, and settle all that misses
    needs_scores  the selector goes by scores. Then the first pass always runs, it computes the task
                  and one token more, and all rows must be there for it

    A settled token costs its computation now and spares 1 - share of one whenever its row comes
    again, which happens once more with the probability of the forecast. A row met for the first
    time is settled only where the forecast is above the share: else what it spares is less than
    what fusing costs. With `needs_scores` there is no such choice row by row.
    """
    settled = tuple(
        row
        for row, num in enumerate(missing)
        if num and (is_pinned or needs_scores or was_met[row] or forecast > share)
    )
    if is_pinned:
        return Choice(True, settled)
    num_settled = sum(missing[row] for row in settled)
    spared = forecast * (1 - share) * num_settled
    # The first pass computes one token that is thrown away. What is selected in a row that is not
    # settled counts twice, to the disadvantage of fusing.
    num_first_pass = num_task + 1 if needs_scores else int(bool(settled))
    computed = sum(missing) + num_missing_system + num_selected + num_task + num_first_pass
    fused = computed - spared
    flat = num_context - num_prefix + num_task
    return Choice(True, settled) if fused < flat else Choice(False, ())
