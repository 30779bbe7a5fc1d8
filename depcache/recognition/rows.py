# SPDX-License-Identifier: Apache-2.0
"""Rows of one format that follow one another in a text.

start       stable        volatile      stop
|  number   |  the fact   |  score, \\n  |      a row; often nothing is volatile
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from depcache.recognition.clock import Clock
from depcache.recognition.recogniser import Recogniser

MAX_ROW = 65_536
"""Most characters of a row."""

_BLANK_LINES = re.compile(r"(?:[ \t\r]*+\n){0,3}+")


class Row(NamedTuple):
    """`[start, stop)` of a row, and its part that is the same wherever the fact comes again."""

    start: int
    stable: int
    volatile: int
    stop: int


class Run(NamedTuple):
    """Rows that follow one another, and where one begins that is too long; -1 if none does."""

    rows: list[Row]
    too_long: int = -1


def find_runs(text: str, recogniser: Recogniser, clock: Clock) -> Iterator[Run]:
    """The runs of rows that start in a line of their own. Linear in the text, but for the rows."""
    mark, pos = recogniser.mark, 0
    while (at := text.find(mark, pos)) >= 0:
        clock.check()
        first = max(pos, text.rfind("\n", pos, at) + 1)
        run = read_run(text, first, recogniser, clock)
        if run.rows or run.too_long >= 0:
            yield run
        if run.rows:
            pos = run.rows[-1].stop
        else:
            line_stop = text.find("\n", at)
            pos = len(text) if line_stop < 0 else line_stop + 1


def find_places(text: str, recogniser: Recogniser, clock: Clock) -> Iterator[int]:
    """Where rows within a line may begin: at each mark."""
    at = text.find(recogniser.mark)
    while at >= 0:
        clock.check()
        first = at + recogniser.skip
        if first == at + len(recogniser.mark):  # the mark may be the end of a line
            first += 2 if text.startswith("\r\n", first) else text.startswith("\n", first)
        yield first
        at = text.find(recogniser.mark, at + 1)


def read_run(text: str, pos: int, recogniser: Recogniser, clock: Clock) -> Run:
    """The rows from here on. A row takes the blank lines that stand behind the first as well."""
    rows: list[Row] = []
    while pos < len(text):
        clock.check()
        row = _read_row(text, pos, recogniser)
        if row is None or row.stop - pos > MAX_ROW:
            return Run(_spread(text, rows), -1 if row is None else pos)
        rows.append(row)
        pos = row.stop
        if not recogniser.item and (match := _BLANK_LINES.match(text, pos)):
            pos = match.end()
    return Run(_spread(text, rows))


def _read_row(text: str, pos: int, recogniser: Recogniser) -> Row | None:
    match = recogniser.row_pattern.match(text, pos, min(pos + MAX_ROW + 1, len(text)))
    if match is None or match.end() == pos:
        return None
    stable, volatile, stop = pos, match.end(), match.end()
    for name in recogniser.volatile:
        start, end = match.span(name)
        if 0 <= start < end:
            if start == pos:
                stable = end
            else:
                volatile = min(volatile, start)
    return None if stable >= volatile else Row(pos, stable, volatile, stop)


def _spread(text: str, rows: list[Row]) -> list[Row]:
    """Rows up to the next; the last as far as the blank lines behind it are those of the first."""
    if len(rows) < 2:
        return rows
    blank = text[rows[0].stop : rows[1].start]
    stops = [row.start for row in rows[1:]]
    last = rows[-1].stop
    stops.append(last + len(blank) if text.startswith(blank, last) else last)
    return [
        row._replace(stop=stop, volatile=stop if row.volatile == row.stop else row.volatile)
        for row, stop in zip(rows, stops, strict=True)
    ]
