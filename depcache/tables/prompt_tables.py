# SPDX-License-Identifier: Apache-2.0
"""From the texts of a prompt that others wrote to the outline of the tables in it.

A row is a table with the blanks around it, cut so that the rows of one program are alike:

    ...tables:\\n | \\n CREATE a \\n\\n | \\n CREATE b \\n\\n | \\n CREATE c \\n\\n | Question...
                 | <-- row 0 --->     | <-- row 1 --->     | <-- row 2 --->     |

Blanks that stand before every table begin its row. What else stands between two tables ends the row
of the first, and that of the last where the same stands behind it. So neither the place of a table
nor its neighbours change its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any, Literal

from depcache.errors import ConfigError, PromptError, shorten
from depcache.prompt.outline import Outline
from depcache.recognition.clock import Clock, TooSlowError
from depcache.recognition.texts import PromptText, read_texts
from depcache.tables.catalog import Catalog
from depcache.tables.find import (
    DEADLINE_S,
    MAX_LEN,
    CatalogFinder,
    DdlFinder,
    Finder,
    Found,
    Hit,
    give_up,
)
from depcache.tables.seen import DEFAULT_SEES, Sees, count_absent, read_sees, see

type TablesToFind = Catalog | Literal["ddl"]
"""The tables of a catalog, or whatever CREATE TABLE declares."""


@dataclass(frozen=True)
class FoundTables:
    """What was found in a prompt.

    message  number of the message that was read; None is a prompt without messages
    text     its text
    found    what the finder says of it
    outline  spans of this text; None where there is nothing to be reused
    """

    message: int | None
    text: str
    found: Found
    outline: Outline | None = None


class PromptTables:
    """Looks for tables in prompts. Safe to share by threads.

    finder      finds them in a text
    catalog     who refers to whom, also by way of tables that a prompt leaves out; None: what the
                tables in the prompt say
    sees        what a table sees, see `depcache.tables.seen.Sees`
    deadline_s  a prompt of many texts that takes longer has no tables; None: there is none
    """

    def __init__(
        self,
        finder: Finder,
        catalog: Catalog | None = None,
        *,
        sees: str = DEFAULT_SEES,
        deadline_s: float | None = DEADLINE_S,
    ) -> None:
        self.catalog = catalog
        self._finder = finder
        self._sees: Sees = read_sees(sees)
        self._deadline_s = deadline_s

    @classmethod
    def make(
        cls,
        tables: TablesToFind,
        *,
        sees: str = DEFAULT_SEES,
        deadline_s: float | None = DEADLINE_S,
    ) -> PromptTables:
        """Looks for these. Raises ConfigError for anything else, and without the extra `tables`."""
        if isinstance(tables, Catalog):
            return cls(CatalogFinder(tables), tables, sees=sees, deadline_s=deadline_s)
        if tables == "ddl":
            return cls(DdlFinder(deadline_s=deadline_s), sees=sees, deadline_s=deadline_s)
        raise ConfigError(
            f'tables is {shorten(tables)}: give a depcache.tables.Catalog, or "ddl" for whatever '
            "CREATE TABLE declares"
        )

    def recognise(self, prompt: str | Sequence[Any]) -> FoundTables:
        """Find the tables in a text, or in the messages of a chat as OpenAI has them.

        One message is read, that with the most characters of tables; the model's own messages are
        not, and what it has answered already only where nothing newer holds tables. Nothing is
        changed. Where there is too much to look at nothing is found, and one line in the log says
        so. Never raises for what a prompt holds; PromptError for what is no prompt.
        """
        texts = list(read_texts(prompt))
        if not texts:
            return FoundTables(None, "", Found((), reason="there is no message with a text"))
        looked = self._look(texts)
        best, found = max(
            # Where nothing is found, the last message is the one that is asked about.
            reversed(looked),
            key=lambda each: (bool(each[1].hits) and not each[0].is_past, _num_chars(each[1])),
        )
        outline = None
        if found.hits:
            try:
                outline = self._outline(best, found.hits)
            except PromptError as error:  # more rows than an outline holds
                found = give_up(str(error))
        return FoundTables(best.message, best.text, found, outline)

    def _look(self, texts: list[PromptText]) -> list[tuple[PromptText, Found]]:
        """What is found in each text; the last alone where a prompt is given up."""
        if sum(len(each.text) for each in texts) >= MAX_LEN:
            return [(texts[-1], give_up(f"it has {MAX_LEN} characters or more"))]
        clock = Clock(self._deadline_s)
        looked: list[tuple[PromptText, Found]] = []
        for each in texts:
            try:
                clock.check()
            except TooSlowError as error:
                return [(each, give_up(str(error)))]
            looked.append((each, self._finder.look(each.text)))
            if looked[-1][1].gave_up:
                return looked[-1:]
        return looked

    def _outline(self, prompt_text: PromptText, hits: Sequence[Hit]) -> Outline:
        catalog = self.catalog or Catalog(hit.table for hit in hits)
        names = [hit.table.name for hit in hits]
        row_of = {name: row for row, name in enumerate(names)}
        seen = see(catalog, names, self._sees)
        start, rows = _cut(prompt_text.text, hits)
        return Outline(
            start=start,
            lens=tuple(length for row in rows for length in row),
            rows=tuple(map(len, rows)),
            message=prompt_text.message,
            sees=tuple(tuple(sorted(row_of[o] for o in seen.get(name, ()))) for name in names)
            if seen
            else (),
            absent=count_absent(catalog, names),
        )


def _cut(text: str, hits: Sequence[Hit]) -> tuple[int, list[tuple[int, ...]]]:
    """Where the first row begins, and the code points of the elements of each row.

    Blanks at the very ends of the text are left out, since many chat templates trim messages.
    """
    before, behind = text[: hits[0].start], text[hits[-1].stop :]
    gaps = [text[a.stop : b.start] for a, b in pairwise(hits)]
    front = before[len(before.rstrip()) :] if before.strip() else ""
    backwards = zip(*map(reversed, (front, *gaps)), strict=False)
    lead = sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, backwards))
    ends = [len(gap) - lead for gap in gaps]
    is_alike = bool(gaps) and behind.strip() and behind.startswith(gaps[-1][: ends[-1]])
    ends.append(ends[-1] if is_alike else 0)
    return hits[0].start - lead, [
        (lead + hit.stop - hit.start, end) if end else (lead + hit.stop - hit.start,)
        for hit, end in zip(hits, ends, strict=True)
    ]


def _num_chars(found: Found) -> int:
    return sum(hit.stop - hit.start for hit in found.hits)
