# SPDX-License-Identifier: Apache-2.0
"""Whether a piece of a prompt may be its question."""

from __future__ import annotations

import re

_LABEL = re.compile(
    r"^[^\w\n]{0,8}(?:(?:user|the)[ _-]?)?(?:question|query|q)\b[^\w\n]{0,4}(?:is\b|:|\r?$)",
    re.IGNORECASE | re.MULTILINE,
)
_MARK = re.compile(r"[?？][\"'`)\]*_ \t\r]*$", re.MULTILINE)


def holds_question(text: str) -> bool:
    """Whether a line is labelled as a question, or ends as one. Rather too often than not."""
    return _LABEL.search(text) is not None or _MARK.search(text) is not None
