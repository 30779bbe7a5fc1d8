# SPDX-License-Identifier: Apache-2.0
"""Where a Markdown text shows code: the stretches between two fences."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from depcache.recognition.clock import Clock

FENCES = ("```", "~~~")


class Fence(NamedTuple):
    """The lines between two fences, `[start, stop)`; what stands behind the first is its `info`."""

    start: int
    stop: int
    info: str
    is_closed: bool


def find_fences(text: str, clock: Clock) -> list[Fence]:
    """The fenced stretches of a text, in order. Linear in the text. Raises TooSlowError.

    A fence stands alone in its line, but for blanks before and its info behind. One with an info
    opens a stretch even where another was left open; one left open ends with the text.
    """
    found: list[Fence] = []
    start, info = -1, ""
    for line_start, line_stop in _fence_lines(text, clock):
        clock.check()
        words = text[line_start:line_stop].strip().lstrip("`~").strip()
        if start >= 0:
            found.append(Fence(start, line_start, info, is_closed=True))
        if start < 0 or words:
            start, info = line_stop + 1, words.partition(" ")[0].lower()
        else:
            start = -1
    if start >= 0:
        found.append(Fence(start, len(text) + 1, info, is_closed=False))
    return found


def fence_at(fences: list[Fence], position: int) -> Fence | None:
    """The fenced stretch that holds this position."""
    number = bisect_right(fences, position, key=lambda fence: fence.start) - 1
    return fences[number] if number >= 0 and position < fences[number].stop else None


def _fence_lines(text: str, clock: Clock) -> list[tuple[int, int]]:
    lines: list[tuple[int, int]] = []
    for mark in FENCES:
        pos = text.find(mark)
        while pos >= 0:
            clock.check()
            line_start = text.rfind("\n", lines[-1][1] if lines else 0, pos) + 1
            line_stop = text.find("\n", pos)
            line_stop = len(text) if line_stop < 0 else line_stop
            is_alone = not text[line_start:pos].strip()
            if is_alone and mark not in text[pos + len(mark) : line_stop].lstrip(mark[0]):
                lines.append((line_start, line_stop))
            pos = text.find(mark, line_stop)
    return sorted(lines)
