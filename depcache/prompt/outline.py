# SPDX-License-Identifier: Apache-2.0
"""The outline: which spans of a text are context, and how they hang together.

The context is one stretch of one text, cut without gaps. What is no fact of its own, a header or a
remark between two blocks, is a row as well:

    start                                                       stop
    |  row 0                |  row 1        |  row 2  |  row 3  |
    | element | element | e | element | ele | element | element |
    |<------>| |<------>|                                          lens, in code points

What stands before `start` is the system, what stands behind `stop` is the task. So no two spans can
overlap, and the numbers are small: a length for each element, a count for each row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

from depcache.errors import PromptError, shorten

PREFIX = "depcache_"
"""What the names of all our keys in `custom_params` begin with."""

MAX_ELEMENTS = 2**20
"""Most elements of one outline; a prompt of any model has fewer tokens."""

MAX_SEEING_ROWS = 4096
"""Most rows of an outline whose rows see others."""

MAX_SEEN = 2**17
"""Most numbers that all these rows together may name."""

_KEYS = ("message", "start", "lens", "rows", "parents", "merge", "lead", "sees", "absent")


@dataclass(frozen=True)
class Outline:
    """The context of one prompt, as spans of its text.

    start    code point at which the first row begins
    lens     code points of each element, at least 1
    rows     elements of each row, at least 1; the elements follow one another in the text
    parents  the earlier row that each row hangs below, -1 for none: a row sees the rows above it,
             and itself. () where all are roots; not with `merge`.
    merge    True: rows that begin with equal elements become one tree, which is shorter and
             another text. False: rows stand whole, and only the cache stores their
             common beginning once.
    message  number of the message whose text it is; None is the text of a prompt without messages.
             A message of several texts is these one behind the other; the context lies in one
    lead     with `merge`: code points that all rows begin with, a separator such as "\\n". It is
             the system's, where the tokenizer keeps it apart: else it would be the one root of all
    sees     for each row the other rows that it sees, with all that these see, whichever comes
             first; () where none sees another. Rows that see each other are seen as one. Not with
             `parents`; with `merge`, rows that see the same share their beginnings
    absent   how many references lead from its rows to what is not in the prompt; None where they
             are not counted. It changes nothing but the report

    An element is encoded by itself, so its tokens depend on no neighbour. Raises PromptError when
    the numbers cut no text; `check_text` says whether they fit one.
    """

    start: int
    lens: tuple[int, ...]
    rows: tuple[int, ...]
    parents: tuple[int, ...] = ()
    merge: bool = False
    message: int | None = None
    lead: int = 0
    sees: tuple[tuple[int, ...], ...] = ()
    absent: int | None = None

    def __post_init__(self) -> None:
        for name in ("lens", "rows", "parents"):
            object.__setattr__(self, name, _read_ints(getattr(self, name), name))
        if type(self.merge) is not bool:
            raise PromptError(f"merge of the outline is {shorten(self.merge)}: send true or false")
        if self.message is not None and (type(self.message) is not int or self.message < 0):
            raise PromptError(
                f"message of the outline is {shorten(self.message)}: send the number of a message, "
                "from 0 on, or null for a prompt without messages"
            )
        for name in ("start", "lead"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise PromptError(
                    f"{name} of the outline is {shorten(value)}: send a number of code points, "
                    "from 0 on"
                )
        if not self.rows:
            raise PromptError("the outline has no rows: leave it out of a plain prompt")
        for name in ("lens", "rows"):
            values = getattr(self, name)
            if min(values, default=1) < 1:
                raise PromptError(
                    f"{min(values)} is among the {name} of the outline: a row has at least one "
                    "element, an element at least one code point"
                )
        if sum(self.rows) != len(self.lens):
            raise PromptError(
                f"the rows of the outline have {shorten(sum(self.rows))} elements, but there are "
                f"{len(self.lens)} lens: send one length for each element"
            )
        self._check_parents()
        object.__setattr__(self, "sees", _read_sees(self.sees, len(self.rows)))
        if self.sees and self.parents:
            raise PromptError("sees of the outline cannot be combined with parents: leave out one")
        if self.absent is not None and not (
            type(self.absent) is int and 0 <= self.absent <= MAX_ELEMENTS
        ):
            raise PromptError(
                f"absent of the outline is {shorten(self.absent)}: send a number of references, "
                f"from 0 to {MAX_ELEMENTS}, or leave it out"
            )

    def _check_parents(self) -> None:
        if not self.parents:
            return
        if self.merge:
            raise PromptError(
                "parents of the outline cannot be combined with merge: leave out one of them"
            )
        if len(self.parents) != len(self.rows):
            raise PromptError(
                f"the outline has {len(self.rows)} rows and {len(self.parents)} parents: send one "
                "for each row, or none at all"
            )
        way: list[int] = []
        for row, parent in enumerate(self.parents):
            while way and way[-1] != parent:
                way.pop()
            if parent != -1 and not way:
                raise PromptError(
                    f"row {row} of the outline has parent {shorten(parent)}, under which row "
                    f"{row - 1} does not stand: a parent is the row before, or one above that"
                )
            way.append(row)

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    @cached_property
    def stop(self) -> int:
        """The first code point behind the last row."""
        return self.start + sum(self.lens)

    def pieces(self, text: str) -> list[str]:
        """The text of each element, in order. Raises PromptError unless the outline fits."""
        self.check_text(text)
        ends = list(accumulate(self.lens, initial=self.start))
        return [text[a:b] for a, b in pairwise(ends)]

    def lead_of(self, pieces: Sequence[str]) -> str:
        """The text that all rows begin with; PromptError unless they do.

        pieces  what `pieces` returned
        """
        firsts = accumulate(self.rows[:-1], initial=0)
        begins = {pieces[first][: self.lead] for first in firsts}
        lead = begins.pop()
        if begins or len(lead) != self.lead:
            raise PromptError(
                f"lead of the outline is {self.lead}, but its rows do not all begin with the same "
                f"text {shorten(lead)}: send 0, or the length of the separator before each row"
            )
        return lead

    def moved(self, start: int, message: int | None = None) -> Outline:
        """The same outline of another text, in which the context begins at `start`."""
        return replace(self, start=start, message=message)

    def check_text(self, text: str) -> None:
        """Raises PromptError when the outline leaves `text`."""
        if self.stop > len(text):
            raise PromptError(
                f"the outline reaches to code point {shorten(self.stop)}, but the text has "
                f"{len(text)}: count code points (not bytes, not UTF-16 units) of the text as sent"
            )

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads; what has its default is left out."""
        data: dict[str, Any] = {
            "message": self.message,
            "start": self.start,
            "lens": list(self.lens),
            "rows": list(self.rows),
        }
        if self.parents:
            data["parents"] = list(self.parents)
        if self.merge:
            data["merge"] = True
        if self.lead:
            data["lead"] = self.lead
        if self.sees:
            data["sees"] = [list(seen) for seen in self.sees]
        if self.absent is not None:
            data["absent"] = self.absent
        return data

    def to_params(self, layout: str, template: str | None = None) -> dict[str, Any]:
        """The `custom_params` of a request, version 2 of the wire.

        layout    position layout of the request
        template  name of the template that wrote the rows, if any
        """
        params = {
            "depcache_version": 2,
            "depcache_layout": layout,
            "depcache_outline": self.to_json(),
        }
        return params if template is None else {**params, "depcache_template": template}

    @classmethod
    def from_json(cls, data: Any) -> Outline:
        """The outline in a request. O(numbers). Raises PromptError."""
        if not isinstance(data, Mapping):
            raise PromptError(f"the outline is {shorten(data)}: send an object")
        unknown = sorted(str(key) for key in data if key not in _KEYS)
        missing = [key for key in ("start", "lens", "rows") if key not in data]
        if unknown or missing:
            what = f"{shorten(unknown[0])} is no key" if unknown else f"{missing[0]} is missing"
            raise PromptError(f"{what} of the outline: its keys are {', '.join(_KEYS)}")
        return cls(**data)


def outline_schema(schema: dict[str, Any]) -> None:
    """Write the keys of an outline into the JSON Schema of the object that holds it."""
    ints = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 1}}
    above = {"type": "array", "items": {"type": "integer", "minimum": -1}}
    count = {"type": "integer", "minimum": 0}
    schema |= {
        "properties": {
            "message": {"anyOf": [count, {"type": "null"}]},
            "start": count,
            "lens": ints,
            "rows": ints,
            "parents": above,
            "merge": {"type": "boolean"},
            "lead": count,
            "sees": {"type": "array", "items": {"type": "array", "items": count}},
            "absent": {"anyOf": [count, {"type": "null"}]},
        },
        "required": ["start", "lens", "rows"],
        "additionalProperties": False,
    }


def _read_ints(values: Any, name: str, of: str = " of the outline") -> tuple[int, ...]:
    """A tuple of ints; cheap to refuse, since lists arrive from outside."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise PromptError(f"{name}{of} is {shorten(values)}: send a list of ints")
    if len(values) > MAX_ELEMENTS:
        raise PromptError(
            f"{name}{of} holds {len(values)} numbers, more than {MAX_ELEMENTS}: send fewer rows"
        )
    if set(map(type, values)) - {int}:
        wrong = next(value for value in values if type(value) is not int)
        raise PromptError(f"{shorten(wrong)} is among the {name}{of}: send ints")
    return tuple(values)


def _read_sees(values: Any, num_rows: int) -> tuple[tuple[int, ...], ...]:
    """For each row the rows that it sees; () where none sees any."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise PromptError(f"sees of the outline is {shorten(values)}: send a list for each row")
    if not values:
        return ()
    if len(values) != num_rows:
        raise PromptError(
            f"the outline has {num_rows} rows, but sees has {len(values)} lists: send one list for "
            "each row, or none at all"
        )
    if num_rows > MAX_SEEING_ROWS:
        raise PromptError(
            f"the outline has {num_rows} rows that may see others, more than {MAX_SEEING_ROWS}: "
            "send fewer"
        )
    num_seen = 0
    sees: list[tuple[int, ...]] = []
    for row, value in enumerate(values):
        seen = _read_ints(value, f"rows that row {row} of the outline sees", "")
        num_seen += len(seen)
        if num_seen > MAX_SEEN:
            raise PromptError(
                f"sees of the outline names more than {MAX_SEEN} rows: leave out what is seen "
                "through another row"
            )
        if any(a >= b for a, b in pairwise(seen)):
            raise PromptError(
                f"row {row} of the outline sees {shorten(list(seen))}: name each row once, in "
                "ascending order"
            )
        if seen and not (seen[0] >= 0 and seen[-1] < num_rows and row not in seen):
            raise PromptError(
                f"row {row} of the outline sees {shorten(list(seen))}: name other rows, from 0 to "
                f"{num_rows - 1}"
            )
        sees.append(seen)
    return tuple(sees) if num_seen else ()
