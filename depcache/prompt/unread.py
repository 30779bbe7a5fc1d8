# SPDX-License-Identifier: Apache-2.0
"""What looks like graph facts in a text that DepCache reads no facts from: enough to say so.

The spellings of single lines are those of the recognisers. Nothing is made of what is found, so a
text that only looks like facts costs a sentence in a log, and here one line without its header, or
a fact between other words, is enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from depcache.recognition.formats import FACT_KEYS, FORMATS

MIN_ROWS = 2
"""One line may be prose or an example; two are facts."""

MAX_TEXT, MAX_LINE = 200_000, 2_000
"""Characters of a text, and of one of its lines, that are looked at."""

_OBJECT = re.compile(r"\{[^{}\n]+\}")
_KEY = re.compile(rf"['\"](?:{FACT_KEYS}|relationship|type\(\w+\))['\"] ?:")
OBJECTS = '{"entity1": ..., "entity2": ...}'

_CELLS = re.compile(r"[|,\t]")
_HEADERS = (
    {"source", "target"},
    {"head", "tail"},
    {"subject", "object"},
    {"entity", "description"},
)
TABLE = "source|target|description"

_INTRODUCTION = re.compile(r"\b(?:triplets?|triples|facts)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"\s*(?:[-*] )?[^\W_][^\n:?>|\t]*$")
SENTENCES = "A relation B"
_MAX_WORDS = 15


class Unread(NamedTuple):
    """Rows in one spelling: how many, and the first of them."""

    spelling: str
    count: int
    example: str


def texts_of(messages: Any) -> list[str]:
    """The texts of OpenAI messages but for the model's own; what is no text is left out."""
    texts: list[Any] = []
    for message in messages if isinstance(messages, list | tuple) else []:
        if isinstance(message, Mapping) and message.get("role") != "assistant":
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            texts += [part.get("text") for part in parts if isinstance(part, Mapping)]
    return [text for text in texts if isinstance(text, str)]


def find_unread(texts: Iterable[str]) -> list[Unread]:
    """What looks like facts in these texts, the most frequent spelling first; often nothing."""
    rows: dict[str, list[str]] = {}
    for text in texts:
        lines = text[:MAX_TEXT].replace("\\n", "\n").split("\n")  # a repr inside a text
        for spelling, found in _find(lines).items():
            rows.setdefault(spelling, []).extend(found)
    found = [
        Unread(spelling, len(rows[spelling]), rows[spelling][0].strip()[:100])
        for spelling in rows
        if len(rows[spelling]) >= MIN_ROWS
    ]
    return sorted(found, key=lambda each: -each.count)


@cache
def _lines() -> list[tuple[str, re.Pattern[str]]]:
    """Spelling and pattern of the formats whose lines say by themselves that they are facts."""
    return [
        (each.spelling, re.compile(each.row))
        for each in FORMATS
        if each.name in ("arrows", "bracket-arrows", "repr-arrows", "list-rows", "records")
    ]


def _find(lines: list[str]) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for line in lines:
        for spelling, pattern in _lines():
            if pattern.match(line, 0, MAX_LINE):
                rows.setdefault(spelling, []).append(line)
                break
        else:
            objects = [each for each in _OBJECT.findall(line) if _KEY.search(each)]
            if objects:
                rows.setdefault(OBJECTS, []).extend(objects)
    if tables := _find_tables(lines):
        rows[TABLE] = tables
    if not rows and (sentences := _find_sentences(lines)):
        rows[SENTENCES] = sentences
    return rows


def _find_tables(lines: list[str]) -> list[str]:
    """Rows below headers with the columns of a graph, up to a line with fewer of them."""
    rows: list[str] = []
    num_columns = 0
    for line in lines:
        cells = _CELLS.split(line.strip())
        names = {cell.strip(" \"'").lower() for cell in cells}
        if any(names >= header for header in _HEADERS):
            num_columns = len(cells)
        elif num_columns and len(cells) >= num_columns:
            rows.append(line)
        elif line.strip():
            num_columns = 0
    return rows


def _find_sentences(lines: list[str]) -> list[str]:
    """Short lines right behind one that speaks of facts or triples: `A born in B`."""
    rows: list[str] = []
    is_behind = False
    for line in lines:
        if _INTRODUCTION.search(line):
            is_behind = True
        elif is_behind and _SENTENCE.match(line) and 2 < len(line.split()) <= _MAX_WORDS:
            rows.append(line)
        elif line.strip():
            is_behind = False
    return rows
