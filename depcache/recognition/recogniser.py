# SPDX-License-Identifier: Apache-2.0
"""A recogniser: how the rows of one format look, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cached_property

from depcache.errors import PromptError, shorten

KINDS = ("relation", "entity", "passage", "record")
"""What a row is: an edge or a path, a node, a piece of a document, or a row of a table."""

_END = r"[ \t\r]*+(?:\n|\Z)"


@dataclass(frozen=True, kw_only=True)
class Recogniser:
    """One format. The patterns are of the module `re`; no flags are set.

    name      what results call it, and what switches it on
    mark      letters in the first line of each row; if `item`, those around the place where the
              first row begins. Texts without them are not looked at, so most formats cost nothing.
    skip      if `item`: so many letters of the mark stand before the first row
    row       a row, from its first letter to the end of its line, which may be left out; a row of
              several lines names them all
    kind      one of KINDS
    section   the header right before the first row, up to it, from the start of a line; within a
              line if `item` and the mark is its end. It becomes the parent of the rows, so it
              must not name what differs from question to question. "": rows have none.
    bare      rows may stand without the header, if there are two of them
    volatile  groups of `row` that differ where the same fact comes again: numbers, scores,
              separators. They stand at one end of it.
    item      rows follow one another within a line
    fences    of code fences, those in which rows may stand: what stands behind ```
    lead      a line or more right before the header that differs from question to question
    close     what has to stand behind the last row
    passage   a text behind the rows of a section with a header
    spelling  how a row looks, for people
    since     the framework, and the release of it, that the format was seen in

    Patterns should take time linear in the text (`++`, `*+`, classes that leave out the end of a
    line): a match that is under way is not interrupted. Raises PromptError for what cannot work.
    """

    name: str
    mark: str
    row: str
    kind: str
    section: str = ""
    bare: bool = False
    volatile: tuple[str, ...] = ()
    item: bool = False
    skip: int = 0
    fences: tuple[str, ...] = ()
    lead: str = ""
    close: str = ""
    passage: str = ""
    spelling: str = ""
    since: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            wanted = {"bool": bool, "str": str, "int": int}.get(str(field.type), tuple)
            if not isinstance(value, wanted):
                raise PromptError(
                    f"{field.name} of a recogniser is {shorten(value)}: give a {wanted.__name__}"
                )
        for name in ("name", "mark", "row"):
            if not getattr(self, name).strip("\n"):
                raise PromptError(f"a recogniser needs a {name}: set one")
        if self.kind not in KINDS:
            raise PromptError(
                f"kind of the recogniser {self.name!r} is {shorten(self.kind)}: "
                f"use {', '.join(KINDS)}"
            )
        for pattern in ("row", "section", "lead", "close", "passage"):
            try:
                compiled = re.compile(getattr(self, pattern))
            except re.error as error:
                raise PromptError(
                    f"{pattern} of the recogniser {self.name!r} is no pattern ({error}): correct it"
                ) from error
            unknown = set(self.volatile) - set(compiled.groupindex)
            if pattern == "row" and unknown:
                raise PromptError(
                    f"row of the recogniser {self.name!r} has no group {min(unknown)!r}: "
                    "name the groups that are volatile"
                )

    @cached_property
    def row_pattern(self) -> re.Pattern[str]:
        """A row and the end of its line; a row within a line alone."""
        end = "" if self.item else rf"(?:(?<=\n)|{_END})"
        return re.compile(f"(?:{self.row}){end}")

    @cached_property
    def section_pattern(self) -> re.Pattern[str] | None:
        return re.compile(f"(?:{self.section})") if self.section else None

    @cached_property
    def inner_section_pattern(self) -> re.Pattern[str]:
        """A header that ends where the search ends, anywhere before."""
        return re.compile(rf"(?:{self.section})\Z")

    @cached_property
    def lead_pattern(self) -> re.Pattern[str] | None:
        return re.compile(self.lead) if self.lead else None

    @cached_property
    def close_pattern(self) -> re.Pattern[str] | None:
        return re.compile(rf"\s*+(?:{self.close})") if self.close else None

    @cached_property
    def passage_pattern(self) -> re.Pattern[str] | None:
        return re.compile(self.passage) if self.passage else None
