# SPDX-License-Identifier: Apache-2.0
"""Sections of a text: a header, if the format has one, and the rows below it."""

from __future__ import annotations

import re
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from depcache.recognition.clock import Clock
from depcache.recognition.fences import fence_at, find_fences
from depcache.recognition.question import holds_question
from depcache.recognition.recogniser import Recogniser
from depcache.recognition.rows import MAX_ROW, Row, Run, find_places, find_runs, read_run

MIN_ROWS = 2
"""One row may be prose or an example; two are facts."""

MAX_HEADER, MAX_HEADER_LINES, MAX_INNER_HEADER = 2_000, 6, 60

_LINE_END = re.compile(r"[ \t\r]*+(?:\n|\Z)")
_BLANK_LINES = re.compile(r"(?:[ \t\r]*+\n){0,3}+")
_DIFF = ("@@ -", "diff --git ", "--- a/")


@dataclass(frozen=True, slots=True)
class Section:
    """Rows of one format, with what belongs to them.

    start    where the header begins, or else the first row
    lead     where the text begins that stands before the header and differs between questions
    passage  `[start, stop)` of the text behind the rows; () for none
    """

    recogniser: Recogniser
    start: int
    lead: int
    rows: list[Row]
    passage: tuple[int, int] | tuple[()] = ()

    @property
    def has_header(self) -> bool:
        return self.start < self.rows[0].start

    @property
    def stop(self) -> int:
        return self.passage[1] if self.passage else self.rows[-1].stop

    @property
    def num_chars(self) -> int:
        return self.stop - self.rows[0].start


class Refused(NamedTuple):
    """Rows that were not read, and why not."""

    name: str
    start: int
    stop: int
    num_rows: int
    reason: str


def find_sections(
    text: str, recognisers: Sequence[Recogniser], clock: Clock
) -> tuple[list[Section], list[Refused]]:
    """The sections of a text, in order, and what looks like one but is none.

    Of two that overlap, the one of the earlier recogniser. Raises TooSlowError.
    """
    reader = _Reader(text, clock)
    for recogniser in recognisers:
        clock.check()
        if recogniser.mark in text:
            reader.read(recogniser)
    # What another recogniser has read is not refused.
    return reader.sections, [each for each in reader.refused if not reader.has_read(each)]


class _Reader:
    """One text, while it is read by one recogniser after the other."""

    def __init__(self, text: str, clock: Clock) -> None:
        self.sections: list[Section] = []  # in order, without overlaps
        self.refused: list[Refused] = []
        self._text = text
        self._clock = clock
        self._fences = find_fences(text, clock)
        self._is_diff = text.startswith(_DIFF) or any(f"\n{each}" in text for each in _DIFF)

    def read(self, recogniser: Recogniser) -> None:
        for start, run in self._candidates(recogniser):
            if run.too_long >= 0:
                reason = f"a row of more than {MAX_ROW} characters"
                self._refuse(recogniser, run.too_long, run.too_long, 0, reason)
            if run.rows and not self._overlaps(run.rows[0].start, run.rows[-1].stop):
                self._judge(recogniser, start, run.rows)

    def has_read(self, refused: Refused) -> bool:
        """Whether a section holds (a part of) these rows."""
        return self._overlaps(refused.start, refused.stop)

    def _candidates(self, recogniser: Recogniser) -> Iterator[tuple[int, Run]]:
        """Where the header begins (the first row, if there is none), and the rows."""
        text = self._text
        if not recogniser.item:
            for run in find_runs(text, recogniser, self._clock):
                yield self._header(recogniser, run.rows[0].start) if run.rows else -1, run
            return
        stop = 0
        for first in find_places(text, recogniser, self._clock):
            # The header first: most marks have none, and a row may be long.
            if first >= stop and (start := self._header(recogniser, first)) < first:
                run = read_run(text, first, recogniser, self._clock)
                stop = run.rows[-1].stop if run.rows else first
                yield start, run

    def _header(self, recogniser: Recogniser, first: int) -> int:
        """Where the header of rows begins that begin at `first`; `first` if there is none."""
        pattern = recogniser.section_pattern
        if pattern is None:
            return first
        found = _look_back(self._text, pattern, first, MAX_HEADER_LINES)
        if found == first and recogniser.item and recogniser.skip == len(recogniser.mark):
            low = max(0, first - MAX_INNER_HEADER)
            match = recogniser.inner_section_pattern.search(self._text, low, first)
            return match.start() if match else first
        return found

    def _judge(self, recogniser: Recogniser, start: int, rows: list[Row]) -> None:
        text, first, stop = self._text, rows[0].start, rows[-1].stop
        has_header = start < first
        reason = self._why_not_here(recogniser, first, stop)
        if reason:
            pass
        elif not has_header and recogniser.section and not recogniser.bare:
            reason = "no header"
        elif not has_header and len(rows) < MIN_ROWS:
            reason = "one row only"
        elif not has_header and self._is_diff:
            reason = "inside a diff"
        elif recogniser.close_pattern and not recogniser.close_pattern.match(text, stop):
            reason = "the end is missing"
        elif has_header and self._overlaps(start, first):
            reason = "its header belongs to other rows"
        if reason:
            self._refuse(recogniser, first, stop, len(rows), reason)
            return
        lead = recogniser.lead_pattern
        section = Section(
            recogniser,
            start,
            _look_back(text, lead, start, 3, MAX_ROW) if lead else start,
            rows,
            self._passage(recogniser, stop) if has_header else (),
        )
        insort(self.sections, section, key=lambda each: each.start)

    def _why_not_here(self, recogniser: Recogniser, first: int, stop: int) -> str:
        fence = fence_at(self._fences, first)
        if fence is None:
            return ""
        if fence.info not in recogniser.fences:
            return "inside a code fence"
        if not fence.is_closed or stop > fence.stop:
            return "inside a fence that is not closed"
        return ""

    def _passage(self, recogniser: Recogniser, stop: int) -> tuple[int, int] | tuple[()]:
        if recogniser.passage_pattern is None:
            return ()
        blank = _BLANK_LINES.match(self._text, stop)
        start = blank.end() if blank else stop
        limit = min(start + MAX_ROW, len(self._text))
        match = recogniser.passage_pattern.match(self._text, start, limit)
        if match is None or holds_question(match[0]):
            return ()
        last = start + len(match[0].rstrip())
        end = _LINE_END.match(self._text, last)
        return (start, end.end() if end else last) if last > start else ()

    def _overlaps(self, start: int, stop: int) -> bool:
        number = bisect_right(self.sections, start, key=lambda each: each.start)
        before, behind = self.sections[number - 1 : number], self.sections[number : number + 1]
        return any(each.stop > start for each in before) or any(
            each.start < stop for each in behind
        )

    def _refuse(
        self, recogniser: Recogniser, start: int, stop: int, num_rows: int, reason: str
    ) -> None:
        self.refused.append(Refused(recogniser.name, start, stop, num_rows, reason))


def _look_back(
    text: str, pattern: re.Pattern[str], stop: int, num_lines: int, max_len: int = MAX_HEADER
) -> int:
    """The start of the longest match that ends at `stop` and begins a line; `stop` if none."""
    found, low, start = stop, max(0, stop - max_len), stop
    for _ in range(num_lines):
        if start <= low:
            break
        start = text.rfind("\n", low, start - 1) + 1
        if start == 0 and low > 0:  # the line is longer than a header
            break
        if pattern.fullmatch(text, start, stop):
            found = start
    return found
