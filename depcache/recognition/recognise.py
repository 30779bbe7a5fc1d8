# SPDX-License-Identifier: Apache-2.0
"""From the texts of a chat to the outline of its facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from depcache.errors import PromptError
from depcache.prompt.outline import Outline
from depcache.recognition.clock import Clock, TooSlowError
from depcache.recognition.cut import cluster, make_outline
from depcache.recognition.recogniser import Recogniser
from depcache.recognition.sections import MIN_ROWS, Section, find_sections
from depcache.recognition.table import choose
from depcache.recognition.texts import PromptText, read_texts

MAX_TEXT = 5_000_000
"""Most characters of all texts together."""

DEADLINE_S = 0.1


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row of facts: `[start, stop)` in the text of the message, its recogniser and its kind."""

    start: int
    stop: int
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class UnreadRows:
    """What looks like rows of facts and is in no outline.

    message  number of the message; None is a text without messages
    start    `[start, stop)` in its text
    reason   why not, in a few words
    """

    message: int | None
    start: int
    stop: int
    num_rows: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Recognised:
    """What was found in a prompt.

    outline  spans of the text of one message; None where there is nothing to be reused
    rows     the rows of facts in it; what stands between them is in the outline alone
    unread   what looks like rows and was not read
    reason   why there is no outline; "" if there is one
    text     the text that the outline and the rows are of; "" if there is none
    """

    outline: Outline | None
    rows: tuple[FoundRow, ...] = ()
    unread: tuple[UnreadRows, ...] = ()
    reason: str = ""
    text: str = ""


class _Found(NamedTuple):
    text: PromptText
    sections: list[Section]
    num_chars: int


def recognise(
    prompt: str | Sequence[Any],
    names: Iterable[str] | None = None,
    *,
    deadline_s: float | None = DEADLINE_S,
) -> Recognised:
    """Find the facts in a text, or in the messages of a chat as OpenAI has them.

    names       recognisers to use, see `recognisers()`; None: all
    deadline_s  what takes longer gives no outline; None: there is none

    One message is read, that with the most characters of facts; the model's own messages are not,
    and what it has answered already only where nothing newer holds facts. Nothing is changed, and
    nothing remembered: equal prompts give equal outlines, unless time runs out.

    Never raises for what a prompt holds; PromptError for an unknown name, or what is no prompt.
    """
    table = choose(names)
    texts = list(read_texts(prompt))
    if sum(len(each.text) for each in texts) > MAX_TEXT:
        return Recognised(None, reason=f"too long: more than {MAX_TEXT} characters")
    try:
        return _recognise(texts, table, Clock(deadline_s))
    except TooSlowError:
        return Recognised(None, reason=f"took longer than {deadline_s} s")


def _recognise(texts: list[PromptText], table: tuple[Recogniser, ...], clock: Clock) -> Recognised:
    unread: list[UnreadRows] = []
    found: list[_Found] = []
    for each in texts:
        sections, refused = find_sections(each.text, table, clock)
        unread += [
            UnreadRows(each.message, no.start, no.stop, no.num_rows, no.name, no.reason)
            for no in refused
        ]
        groups = cluster(each.text, sections)
        for group in groups:
            if sum(len(section.rows) for section in group) < MIN_ROWS:
                unread += _leave_out(each, group, "one row only")
            else:
                num_chars = sum(section.num_chars for section in group)
                found.append(_Found(each, group, num_chars))
    if not found:
        return Recognised(None, (), _sort(unread), "no rows of facts")
    best = max(found, key=lambda each: (not each.text.is_past, each.num_chars))
    for other in found:
        if other.text is not best.text:
            unread += _leave_out(other.text, other.sections, "in another message")
        elif other is not best:
            unread += _leave_out(other.text, other.sections, "beyond the question, or too far off")
    clock.check()
    try:
        outline = make_outline(best.text.text, best.sections, best.text.message)
    except PromptError as error:
        return Recognised(None, (), _sort(unread), str(error))
    rows = [
        FoundRow(max(row.start, outline.start), min(row.stop, outline.stop), name, kind)
        for section in best.sections
        for name, kind in [(section.recogniser.name, section.recogniser.kind)]
        for row in section.rows
    ]
    rows += [
        FoundRow(*section.passage, section.recogniser.name, "passage")
        for section in best.sections
        if section.passage
    ]
    rows.sort(key=lambda row: row.start)
    return Recognised(outline, tuple(rows), _sort(unread), text=best.text.text)


def _leave_out(text: PromptText, sections: list[Section], reason: str) -> list[UnreadRows]:
    return [
        UnreadRows(
            text.message,
            section.rows[0].start,
            section.rows[-1].stop,
            len(section.rows),
            section.recogniser.name,
            reason,
        )
        for section in sections
    ]


def _sort(unread: list[UnreadRows]) -> tuple[UnreadRows, ...]:
    return tuple(sorted(unread, key=lambda each: (each.message or 0, each.start)))
