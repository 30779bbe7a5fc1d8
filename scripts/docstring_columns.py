# SPDX-License-Identifier: Apache-2.0
"""For the documentation: columns in docstrings become tables.

Our docstrings explain names in two columns, without a style of their own:

    name   what it is
    other  what that is,
           and more of it

Markdown would run the lines together.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import griffe

_ROW = re.compile(r"^(\S+(?:, \S+| \S+)*?) {2,}(\S.*)$")


class DocstringColumns(griffe.Extension):
    """Rewrites the docstring of each object before it is rendered."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """griffe calls this for every object that it has read."""
        if obj.docstring is not None:
            obj.docstring.value = to_tables(obj.docstring.value)


def to_tables(text: str) -> str:
    """`text` with every paragraph of two columns as a Markdown table."""
    paragraphs = [list(lines) for is_text, lines in groupby(text.splitlines(), key=bool) if is_text]
    return "\n\n".join(_to_table(lines) for lines in paragraphs)


def _to_table(lines: list[str]) -> str:
    rows: list[tuple[str, str]] = []
    for line in lines:
        found = _ROW.match(line)
        if found is not None:
            rows.append((found[1], found[2]))
        elif rows and line.startswith("  "):
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}")
        else:
            return "\n".join(lines)  # prose, or code
    escaped = [(name, what.replace("|", r"\|")) for name, what in rows]
    return "\n".join(["| | |", "|---|---|", *(f"| `{name}` | {what} |" for name, what in escaped)])
