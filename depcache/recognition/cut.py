# SPDX-License-Identifier: Apache-2.0
"""Cut a text into an outline: headers above their rows, and what stands between as rows too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from depcache.prompt.outline import Outline
from depcache.recognition.question import holds_question
from depcache.recognition.sections import Section

MAX_GAP = 20_000
"""Most characters between two sections of one outline."""


def cluster(text: str, sections: Sequence[Section]) -> list[list[Section]]:
    """Sections that one outline can hold: nothing long and no question stands between them."""
    clusters: list[list[Section]] = []
    for section in sections:
        if clusters:
            start, stop = clusters[-1][-1].stop, section.start
            if stop - start <= MAX_GAP and not holds_question(text[start:stop]):
                clusters[-1].append(section)
                continue
        clusters.append([section])
    return clusters


def make_outline(text: str, sections: Sequence[Section], message: int | None) -> Outline:
    """The outline of sections that follow one another without overlaps.

    Blanks at the very ends of the text are left out, since many chat templates trim messages.
    Raises PromptError when there are more elements than an outline holds.
    """
    cuts = _Cuts(sections[0].lead)
    for section in sections:
        cuts.fill(section.start)
        parent = -1
        if section.has_header:
            parent = cuts.add(section.rows[0].start, -1)
        for number, row in enumerate(section.rows):
            if row.stable > row.start:
                # A number goes to the end of what stands before, but not of a header, from which
                # the rows hang: the next question's may begin with another number.
                if number:
                    cuts.stretch(row.stable)
                else:
                    cuts.add(row.stable, parent)
            cuts.add(row.volatile, parent)
            if row.volatile < row.stop:
                cuts.stretch(row.stop)
        if section.passage:
            cuts.fill(section.passage[0])
            cuts.fill(section.passage[1])
    return cuts.outline(text, message)


@dataclass(slots=True)
class _Cuts:
    """Rows as ends of their elements, one behind the other from `start` on."""

    start: int
    ends: list[list[int]] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    @property
    def stop(self) -> int:
        return self.ends[-1][-1] if self.ends else self.start

    def add(self, stop: int, parent: int) -> int:
        """A row of one element up to `stop`; its number."""
        self.ends.append([stop])
        self.parents.append(parent)
        return len(self.ends) - 1

    def stretch(self, stop: int) -> None:
        """The second element of the last row ends here."""
        self.ends[-1] = [self.ends[-1][0], stop]

    def fill(self, stop: int) -> None:
        """A row without a parent, if there is something up to `stop`."""
        if stop > self.stop:
            self.add(stop, -1)

    def outline(self, text: str, message: int | None) -> Outline:
        self._trim(text)
        lens: list[int] = []
        pos = self.start
        for ends in self.ends:
            for end in ends:
                lens.append(end - pos)
                pos = end
        return Outline(
            start=self.start,
            lens=tuple(lens),
            rows=tuple(map(len, self.ends)),
            parents=tuple(self.parents) if max(self.parents) >= 0 else (),
            message=message,
        )

    def _trim(self, text: str) -> None:
        if not text[: self.start].strip():
            self.start = len(text) - len(text.lstrip())
        if not text[self.stop :].strip():
            stop = len(text.rstrip())
            while self.ends and self.ends[-1][-1] > stop:
                ends = [end for end in self.ends[-1][:-1] if end < stop]
                before = ends or (self.ends[-2] if len(self.ends) > 1 else [self.start])
                if before[-1] < stop:
                    self.ends[-1] = [*ends, stop]
                elif ends:
                    self.ends[-1] = ends
                else:
                    self.ends.pop()
                    self.parents.pop()
