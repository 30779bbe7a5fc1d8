# SPDX-License-Identifier: Apache-2.0
"""A guard on the quality of fused answers: recompute more where they differ, then fuse no more.

Fusing is approximate, and how much a recomputed share brings back depends on the model, the text
and the selector. So some answers are judged by the flat prompt, and where too many of their tokens
are not what it would have said, the share is raised step by step, and at last the flat prompt is
answered instead. It goes back by hysteresis, one step at a time.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, pstdev

from depcache.prompt.recompute import DEFAULT_SHARE

WINDOW = 200
"""Judged answers that are looked at, and requests passed over before fusing is tried again."""

MIN_JUDGED = 4
"""Answers without which nothing is decided."""

MAX_SHARE = 0.5
"""The largest share that is tried; above it the flat prompt costs little more."""

LAST_STEP = 4
"""At this one every share is flat: 0, then DEFAULT_SHARE, 0.3, 0.5, flat."""


class QualityGuard:
    """Steps up while fused answers agree too little with the flat prompt's, and back down.

    least  mean agreement below which it steps up, 0 to 1. Agreement of one answer is the share of
           its tokens that are the flat prompt's first choice behind the same beginning
    """

    def __init__(self, least: float, window: int = WINDOW) -> None:
        self._least, self._window = least, window
        self._judged: deque[float] = deque(maxlen=window)
        self._num_passed = 0
        self.step = 0

    @property
    def agreement(self) -> float | None:
        """The mean of the answers judged since the last step; None without any."""
        return fmean(self._judged) if self._judged else None

    def share(self, asked: float) -> float | None:
        """The share to recompute where `asked` was asked for; None: answer the flat prompt.

        Each step doubles it, to DEFAULT_SHARE at least and MAX_SHARE at most, and then ends it.
        """
        share = asked
        for _ in range(self.step):
            if share >= MAX_SHARE:
                return None
            share = min(MAX_SHARE, max(2 * share, DEFAULT_SHARE))
        return share

    def note(self, agreement: float) -> bool:
        """Take an answer into account, 0 to 1; whether that changed the step.

        It steps up when the mean and its standard error together are below the least, and down
        when a whole window lies in the upper half of what is left to 1.
        """
        self._judged.append(agreement)
        mean = fmean(self._judged)
        error = pstdev(self._judged, mean) / len(self._judged) ** 0.5
        if len(self._judged) >= MIN_JUDGED and mean + error < self._least:
            return self._go(min(self.step + 1, LAST_STEP))
        if len(self._judged) == self._window and mean >= (1 + self._least) / 2:
            return self._go(max(self.step - 1, 0))
        return False

    def pass_over(self) -> bool:
        """Note a request that was answered flat because of the guard; whether the step changed.

        None of them can be judged, so after a window of them fusing is tried again.
        """
        self._num_passed += 1
        return self._num_passed >= self._window and self._go(self.step - 1)

    def _go(self, step: int) -> bool:
        self._num_passed = 0
        if step == self.step:
            return False
        self.step = step
        self._judged.clear()
        return True
