# SPDX-License-Identifier: Apache-2.0
"""Stop asking a storage that keeps failing, and ask again after a while."""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger("depcache")


class Breaker:
    """Off after `threshold` failures in a row, for `off_s` seconds.

    After that one more failure switches it off again, and one success closes the matter.
    """

    def __init__(self, name: str, threshold: int, off_s: float, clock: Callable[[], float]) -> None:
        self.num_off = 0
        self._name = name
        self._threshold = threshold
        self._off_s = off_s
        self._clock = clock
        self._failures = 0
        self._until: float | None = None

    @property
    def is_off(self) -> bool:
        """Whether to leave the storage alone now."""
        return self._until is not None and self._clock() < self._until

    def succeed(self) -> None:
        """The storage answered."""
        if self._until is not None:
            logger.info("%s: works again", self._name)
        self._failures = 0
        self._until = None

    def fail(self, why: str) -> None:
        """The storage raised, refused or did not answer in time."""
        self._failures += 1
        # Answers to what was asked before it was switched off change nothing.
        if self._failures < self._threshold or self.is_off:
            return
        first = self._until is None
        self._until = self._clock() + self._off_s
        self.num_off += 1
        log = logger.warning if first else logger.debug
        log(
            "%s: %d failures in a row, the last: %s; not used for %g s, requests are computed "
            "instead",
            self._name,
            self._failures,
            why,
            self._off_s,
        )
