# SPDX-License-Identifier: Apache-2.0
"""Where SQL statements begin and end in a text, without knowing the dialect.

Quotes, comments and parentheses are enough for that. Each scan is linear: what is never closed runs
to the end of the text, and is not looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from depcache.errors import DepCacheError

_KINDS = r"(?:(?:or\s++replace|global|local|temp|temporary|unlogged|external)\s++)*+table\b"
# It begins with letters and minds case, so that `re` looks for these letters alone, which is fast.
_CREATE_TABLE = re.compile(rf"create(?<!\wcreate)\s++{_KINDS}")
_CREATE_TABLE_ANY_CASE = re.compile(_CREATE_TABLE.pattern, re.IGNORECASE)

_HEAD = (
    rf"CREATE\s++(?:{_KINDS}|(?:OR\s++REPLACE\s++)?(?:TEMP\s++|TEMPORARY\s++)?VIEW\b)|ALTER\s+TABLE\b"
    r"|COMMENT\s+ON\b|INSERT\s+INTO\b"
)

# Strings, quoted names and comments: nothing in them ends a statement.
_OPAQUE = (
    r"'[^']*(?:'|\Z)|\"[^\"]*(?:\"|\Z)|`[^`]*(?:`|\Z)|\[[^\]]*(?:\]|\Z)"
    r"|--[^\n]*|/\*(?s:.*?)(?:\*/|\Z)"
)
# Beside these in a file: bodies of functions, what pg_dump copies, and MySQL's comments.
_OPAQUE_IN_FILE = (
    rf"{_OPAQUE}|\$(?P<tag>\w*)\$(?s:.*?)(?:\$(?P=tag)\$|\Z)"
    r"|\bCOPY\s[^;]{0,2000}?\bFROM\s+stdin\b[^;]{0,200};(?s:.*?)(?:^\\\.[ \t]*$|\Z)|^[ \t]*\#[^\n]*"
)
_IN_FILE = re.compile(
    rf"{_OPAQUE_IN_FILE}|(?P<end>;)|(?P<go>^[ \t]*GO[ \t]*$)|(?P<head>\b(?:{_HEAD}))",
    re.IGNORECASE | re.MULTILINE,
)
_IN_STATEMENT = re.compile(rf"{_OPAQUE}|(?P<open>\()|(?P<close>\))|(?P<end>;)")
# What may stand behind the last parenthesis: options by name, and a semicolon.
_VALUE = r"(?:\w+|'(?:[^'\n]|'')*+')"
_OPTIONS = re.compile(
    r"(?:\s*(?:WITHOUT\s+ROWID\b|STRICT\b|(?:DEFAULT\s+)?"
    r"(?:ENGINE|CHARSET|CHARACTER\s+SET|COLLATE|AUTO_INCREMENT|COMMENT|ROW_FORMAT|TABLESPACE)"
    rf"(?:\s*=\s*|\s+){_VALUE}"
    rf"|(?-i:[A-Z_]+)={_VALUE}"  # MySQL's others, as SQLAlchemy writes them
    r"|(?:INHERITS|PARTITION\s+BY\s+\w+|WITH)\s*\([^()\n]*\)),?)*(?:\s*;)?",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"\s*/\*")

MAX_STATEMENT_LEN = 2**15
"""Most characters of one statement in a prompt; the widest table of BIRD has a sixth of it."""


class TooMuchError(DepCacheError):
    """A text holds more than is read of a prompt."""


def begins_of(text: str) -> Iterator[int]:
    """Where CREATE TABLE stands in a text, in any case, also inside quotes and comments."""
    lowered = text.lower()
    # One character may become two, and then places are others.
    if len(lowered) == len(text):
        return (match.start() for match in _CREATE_TABLE.finditer(lowered))
    return (match.start() for match in _CREATE_TABLE_ANY_CASE.finditer(text))


def split(text: str) -> Iterator[tuple[int, str]]:
    """Statements of a file that begin with a word we know, and where each begins.

    A statement ends at its semicolon, at a line GO, or where another of these begins.
    """
    start: int | None = None
    for match in _IN_FILE.finditer(text):
        is_head = match["head"] is not None
        if not is_head and match["end"] is None and match["go"] is None:
            continue
        if start is not None:
            yield start, text[start : match.start()]
        start = match.start() if is_head else None
    if start is not None:
        yield start, text[start:]


class Comments:
    """What stands in comments right behind tables: sample rows, as LangChain writes them.

    text  of one prompt, whose tables are asked for in order; all questions together are linear
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._end: int | None = 0  # of the last comment that was looked for

    def stop_behind(self, stop: int) -> int:
        """Where the comments end that begin behind `stop`, or `stop` if there is none."""
        while begun := _COMMENT.match(self._text, stop, stop + MAX_STATEMENT_LEN):
            # Once there is no end of a comment in the rest, there is none in a later rest either.
            if self._end is not None and self._end < begun.end() + len("*/"):
                found = self._text.find("*/", begun.end())
                self._end = None if found < 0 else found + 2
            if self._end is None:
                break
            stop = self._end
        return stop


class StatementFinder:
    """CREATE TABLE statements in one prompt, with the work bounded by the length of the prompt.

    text        the prompt
    max_budget  characters that may be looked at, all statements together
    """

    def __init__(self, text: str, max_budget: int) -> None:
        self._text = text
        self._budget = max_budget
        self._comments = Comments(text)

    def ends_of(self, start: int) -> tuple[int, int] | None:
        """Where the statement that begins at `start` ends, and all that belongs to it.

        The first is behind its last parenthesis; to the second, options, semicolon and comments
        belong. None where it does not end. Raises TooMuchError when the budget is spent.
        """
        limit = min(len(self._text), start + MAX_STATEMENT_LEN)
        body = self._stop_of_body(start, limit)
        if body is None:
            return None
        options = _OPTIONS.match(self._text, body, limit)
        return body, self._comments.stop_behind(options.end() if options else body)

    def _stop_of_body(self, start: int, limit: int) -> int | None:
        depth = 0
        for match in _IN_STATEMENT.finditer(self._text, start, limit):
            if match["open"]:
                depth += 1
            elif match["close"]:
                depth -= 1
                if depth <= 0:
                    self._spend(match.end() - start)
                    return match.end() if depth == 0 else None
            elif match["end"]:
                self._spend(match.end() - start)
                return None
        self._spend(limit - start)
        return None

    def _spend(self, num_characters: int) -> None:
        self._budget -= num_characters
        if self._budget < 0:
            raise TooMuchError("there is too much unfinished SQL in it")
