# SPDX-License-Identifier: Apache-2.0
"""Find tables in prompts that others wrote: those of a catalog, or any CREATE TABLE statements.

Both finders look at characters, never at tokens: an element of a prompt is encoded by itself, so
tokens do not reach over the edge of a table. What cannot be read is left alone, never refused.
"""

from __future__ import annotations

import logging
import re
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, islice, pairwise
from typing import Protocol

from depcache.errors import PromptError
from depcache.recognition.clock import Clock, TooSlowError
from depcache.tables.declaration import Declaration
from depcache.tables.extra import need
from depcache.tables.read_sql import (
    DIALECTS,
    HINTS,
    blank_unread,
    declaration_of,
    guess_dialects,
    parse,
)
from depcache.tables.statements import (
    MAX_STATEMENT_LEN,
    Comments,
    StatementFinder,
    TooMuchError,
    begins_of,
)
from depcache.tables.table import Table

logger = logging.getLogger(__name__)

MAX_LEN = 5_000_000
"""From so many characters on a prompt is not looked at."""

MAX_STATEMENTS = 10_000
"""From so many CREATE TABLE on a prompt is not looked at."""

MAX_SPANS = 100_000
"""From so many places on, overlapping ones too, at which tables of a catalog stand, a prompt is not
looked at: a table may be written in one letter."""

DEADLINE_S = 0.08
"""How long statements that were not met before may be parsed. What was parsed is kept. Nothing
looks at the clock within a statement, so a long one that would not be ready does not begin."""

NUM_KEPT = 4096
"""Statements whose tables a finder keeps."""

NUM_DIALECTS = 3
"""Dialects that are tried on one statement: what none of them can read takes this much longer.
A long one is tried with fewer, since nothing looks at the clock meanwhile."""


@dataclass(frozen=True)
class Hit:
    """A table at text[start:stop]."""

    start: int
    stop: int
    table: Table


@dataclass(frozen=True)
class Unmatched:
    """text[start:stop] looks like a table and is none of the context, for this reason."""

    start: int
    stop: int
    reason: str


@dataclass(frozen=True)
class Found:
    """What a finder found in a prompt.

    hits       the run of tables that may become the context, in the prompt's order: between two of
               them stand blanks alone, and none comes twice
    unmatched  what else looks like a table
    reason     why there are no hits; "" where there are
    gave_up    there was too much to look at, and the log says so
    """

    hits: tuple[Hit, ...]
    unmatched: tuple[Unmatched, ...] = ()
    reason: str = ""
    gave_up: bool = False


def give_up(reason: str) -> Found:
    """Nothing, because there is too much to look at; says so in the log."""
    logger.warning("no table is looked for in a prompt: %s", reason)
    return Found((), reason=reason, gave_up=True)


class Finder(Protocol):
    """The contract of both finders."""

    def find(self, text: str) -> list[Hit]:
        """Every table in a text: leftmost, of these the longest, none overlapping."""
        ...

    def look(self, text: str) -> Found:
        """The run of tables with the most characters, and what is not in it."""
        ...


class CatalogFinder:
    """Tables of a catalog, by their text: Aho-Corasick over all texts at once.

    Runs of blanks count as one blank, in the catalog and in the prompt. Of tables with one text the
    first counts. Raises ConfigError where pyahocorasick is not installed.
    """

    def __init__(self, tables: Iterable[Table]) -> None:
        self._automaton = need("ahocorasick").Automaton()
        for table in tables:
            text = _collapse(table.text)
            if text not in self._automaton:
                self._automaton.add_word(text, (len(text), table))
        self._automaton.make_automaton()

    def find(self, text: str) -> list[Hit]:
        """Every table in a text; none where there is too much to look at."""
        try:
            return self._read(text)
        except TooMuchError:
            return []

    def look(self, text: str) -> Found:
        """The longest run of one table or more. Comments behind a table belong to it."""
        try:
            found = self._read(text)
        except TooMuchError as error:
            return give_up(str(error))
        comments = Comments(text)
        hits: list[Hit] = []
        for hit in found:
            if not hits or hit.start >= hits[-1].stop:  # else in a comment of the one before
                hits.append(replace(hit, stop=comments.stop_behind(hit.stop)))
        return _choose(text, hits, [], 1, "no table of the catalog stands in it")

    def _read(self, text: str) -> list[Hit]:
        if len(text) >= MAX_LEN:
            raise TooMuchError(f"the text has {MAX_LEN} characters or more")
        if not len(self._automaton):
            return []
        # Not `iter_long`: where a longer text begins and fails, it misses others that begin inside
        # it (pyahocorasick 2.3.1; 803 of 20,000 random searches over three letters lacked a hit).
        spans = [
            (last + 1 - length, last + 1, table)
            for last, (length, table) in islice(self._automaton.iter(_collapse(text)), MAX_SPANS)
        ]
        if len(spans) >= MAX_SPANS:
            raise TooMuchError(f"it has tables of the catalog in {MAX_SPANS} places or more")
        if not spans:
            return []
        origin = _Origin(text)
        return [
            Hit(origin.start_of(start), origin.stop_of(stop), table)
            for start, stop, table in _leftmost_longest(spans)
        ]


class DdlFinder:
    """CREATE TABLE statements, with no catalog: their references are read by sqlglot.

    deadline_s  how long new statements of one text may be parsed; None for as long as it takes.
                A text that takes longer has no hits the first time

    Safe to share by threads. Raises ConfigError where sqlglot is not installed.
    """

    def __init__(self, *, deadline_s: float | None = DEADLINE_S, num_kept: int = NUM_KEPT) -> None:
        # Dialects are modules of their own: loading them would use up a first prompt's time.
        for dialect in dict.fromkeys((*DIALECTS[:NUM_DIALECTS], *(each for _, each in HINTS))):
            parse("CREATE TABLE a (b INT)", [dialect])
        self._deadline_s = deadline_s
        self._declare = lru_cache(num_kept)(_declare)

    def find(self, text: str) -> list[Hit]:
        """Every statement that can be read, also a single one."""
        return self._read(text)[0]

    def look(self, text: str) -> Found:
        """The longest run of two statements or more, its references spelled as the run does."""
        hits, unmatched, reason = self._read(text)
        if reason:
            return give_up(reason)
        found = _choose(text, hits, unmatched, 2, "two CREATE TABLE in a run are needed")
        if unmatched:
            logger.info("%d CREATE TABLE in a prompt cannot be read", len(unmatched))
        return replace(found, hits=_link(found.hits))

    def _read(self, text: str) -> tuple[list[Hit], list[Unmatched], str]:
        """Hits, what cannot be read, and why the text was given up."""
        if len(text) >= MAX_LEN:
            return [], [], f"the text has {MAX_LEN} characters or more"
        begins = list(islice(begins_of(text), MAX_STATEMENTS))
        if len(begins) >= MAX_STATEMENTS:
            return [], [], f"it has {MAX_STATEMENTS} CREATE TABLE or more"
        statements = StatementFinder(text, 4 * len(text))
        clock, pace = Clock(self._deadline_s), _Pace()
        hits: list[Hit] = []
        unmatched: list[Unmatched] = []
        position = 0
        try:
            for begin, following in pairwise([*begins, len(text)]):
                if begin < position:  # in a comment of the one before
                    continue
                clock.check()
                ends = statements.ends_of(begin)
                if ends is None:
                    unmatched.append(Unmatched(begin, following, "it does not end"))
                    continue
                body, stop = ends
                clock.check(pace.expect(body - begin))
                with pace.measure(body - begin):
                    declared = self._declare(text[begin:body])
                table = None if declared is None else _table_of(declared, text[begin:stop])
                if table is None:
                    # Prose may say the words too, and the next statement is then read for itself.
                    reason = "sqlglot cannot read it" if declared is None else "it is no table"
                    unmatched.append(Unmatched(begin, min(stop, following), reason))
                    continue
                hits.append(Hit(begin, stop, table))
                position = stop
        except (TooSlowError, TooMuchError) as error:
            return [], [], str(error)
        return hits, unmatched, ""


class _Pace:
    """How long statements take, told by those of this text before."""

    def __init__(self) -> None:
        self._seconds = self._slowest = 0.0
        self._length = 1

    def expect(self, length: int) -> float:
        """Seconds that a long statement may need, at most those of the slowest before it.

        0 for a short one, which takes little unless it has to wait for a core.
        """
        if length < MAX_STATEMENT_LEN // 8:
            return 0.0
        return min(self._slowest, self._seconds / self._length * length)

    @contextmanager
    def measure(self, length: int) -> Iterator[None]:
        """Watch a statement of so many characters."""
        begun = time.perf_counter()
        yield
        seconds = time.perf_counter() - begun
        self._seconds += seconds
        self._length += length
        self._slowest = max(self._slowest, seconds)


def choose_run(text: str, hits: Sequence[Hit]) -> Sequence[Hit]:
    """The run of hits with the most characters; of equal ones the first.

    In a run nothing but blanks stands between tables. A table that comes a second time begins
    another run.
    """
    runs: list[list[Hit]] = []
    names: set[str] = set()
    for hit in hits:
        is_next = runs and not text[runs[-1][-1].stop : hit.start].strip()
        if not is_next or hit.table.name in names:
            runs.append([])
            names = set()
        runs[-1].append(hit)
        names.add(hit.table.name)
    return max(runs, key=lambda run: run[-1].stop - run[0].start, default=[])


def _choose(
    text: str, hits: list[Hit], unmatched: list[Unmatched], num_needed: int, otherwise: str
) -> Found:
    run = choose_run(text, hits)
    is_long = len(run) >= num_needed
    kept = {hit.start for hit in run} if is_long else set()
    outside = "it stands outside the longest run" if is_long else otherwise
    rest = [Unmatched(h.start, h.stop, outside) for h in hits if h.start not in kept]
    left = tuple(sorted([*unmatched, *rest], key=lambda each: each.start))
    return Found(tuple(run), left) if is_long else Found((), left, otherwise)


def _link(hits: tuple[Hit, ...]) -> tuple[Hit, ...]:
    """The same hits, whose references are names of each other where only case differs."""
    spelled = {hit.table.name.casefold(): hit.table.name for hit in hits}
    return tuple(
        replace(
            hit,
            table=replace(
                hit.table,
                references=tuple(spelled.get(n.casefold(), n) for n in hit.table.references),
            ),
        )
        for hit in hits
    )


def _declare(statement: str) -> Declaration | None:
    num_dialects = min(NUM_DIALECTS, max(1, MAX_STATEMENT_LEN // len(statement)))
    # At once, and not where the statement itself is not read: that would take twice as long.
    statement = blank_unread(statement)
    tree = parse(statement, guess_dialects(statement)[:num_dialects])
    is_table = isinstance(tree, need("sqlglot").exp.Create) and tree.args.get("kind") == "TABLE"
    try:
        return declaration_of(tree, statement) if is_table else None
    # The text is anyone's, and a tree may be of a shape that nobody has seen.
    except Exception:
        return None


def _table_of(declared: Declaration, text: str) -> Table | None:
    """The table; None where no prompt could hold it, because half a character is in it."""
    targets = tuple(key.target for key in declared.foreign_keys if key.target_table.strip())
    try:
        return Table(declared.name, text, targets)
    except PromptError:
        return None


def _leftmost_longest(spans: list[tuple[int, int, Table]]) -> list[tuple[int, int, Table]]:
    found: list[tuple[int, int, Table]] = []
    end = 0
    for span in sorted(spans, key=lambda span: (span[0], -span[1])):
        if span[0] >= end:
            found.append(span)
            end = span[1]
    return found


def _collapse(text: str) -> str:
    return " ".join(text.split())


class _Origin:
    """From places in a collapsed text back to those in the text."""

    def __init__(self, text: str) -> None:
        words = list(re.finditer(r"\S+", text))
        self._starts = [word.start() for word in words]
        lens = (word.end() - word.start() + 1 for word in words)
        self._collapsed = list(accumulate(lens, initial=0))

    def start_of(self, place: int) -> int:
        """The place of the character that stands at `place`, which is no blank."""
        word = bisect_right(self._collapsed, place) - 1
        return self._starts[word] + place - self._collapsed[word]

    def stop_of(self, place: int) -> int:
        """The place behind the character that stands before `place`, which is no blank."""
        return self.start_of(place - 1) + 1
