# SPDX-License-Identifier: Apache-2.0
"""Says once for each client that a prompt held what looks like facts and was not read."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from depcache.prompt.unread import find_unread

_logger = logging.getLogger("depcache.client")


class UnreadNotice:
    """A warning in the log, the first time that there is something to say.

    advice  what to do instead, the end of a sentence
    """

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self.is_said = False

    def look(self, texts: Iterable[str]) -> None:
        """Warn if these texts hold something like facts; nothing once it was said."""
        if self.is_said or not (found := find_unread(texts)):
            return
        self.is_said = True
        count = sum(each.count for each in found)
        _logger.warning(
            "%d lines of a prompt look like facts and were not read as such (%r, the first of %d "
            "spelled %s): they are served as plain text; %s. This is said once for each client",
            count,
            found[0].example,
            found[0].count,
            found[0].spelling,
            self._advice,
        )
