# SPDX-License-Identifier: Apache-2.0
"""Files of text chunks: JSON lines, gzipped or not, a chunk a line.

    {"id": "a-1", "text": "...", "title": "...", "document": "a", "number": 1}

`id` and `text` are needed. `document` and `number` say where a chunk stands in its document;
`title` is for people. Other keys are left alone, and the KV of a chunk depends on its text only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from depcache.errors import PromptError, shorten
from depcache.text_file import open_bytes, reading


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of text.

    id        tells it from all others of its file
    title     "" without one
    document  what it is a part of; None where the file does not say
    number    orders the chunks of a document; None where the file does not say
    """

    id: str
    text: str
    title: str = ""
    document: str | None = None
    number: int | None = None


def read_chunks(file: str | Path) -> list[Chunk]:
    """Returns the chunks of a file, in its order.

    Raises PromptError, with the number of the line, for a line that is no chunk and for an id that
    was there before; and when the file cannot be read, or holds none.
    """
    file = Path(file)
    chunks: dict[str, Chunk] = {}
    lines: dict[str, int] = {}
    with reading(file), open_bytes(file) as data:
        for number, line in enumerate(data, start=1):
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            if not text.strip():
                continue
            try:
                chunk = _read_chunk(text)
            except PromptError as error:
                raise PromptError(f"line {number} of {str(file)!r}: {error}") from None
            if chunk.id in chunks:
                raise PromptError(
                    f"line {number} of {str(file)!r}: the id {shorten(chunk.id)} is that of line "
                    f"{lines[chunk.id]}: give each chunk an id of its own"
                )
            chunks[chunk.id], lines[chunk.id] = chunk, number
    if not chunks:
        raise PromptError(f"{str(file)!r} holds no chunks: write one JSON object a line")
    return list(chunks.values())


def find_predecessors(chunks: Iterable[Chunk]) -> dict[str, Chunk]:
    """Returns the chunk before each in its document, by id; the first of a document has none.

    Raises PromptError for a chunk of a document without a number, and for two of one number.
    """
    documents: dict[str, dict[int, Chunk]] = {}
    for chunk in chunks:
        if chunk.document is None:
            continue
        if chunk.number is None:
            raise PromptError(
                f"chunk {shorten(chunk.id)} is of document {shorten(chunk.document)}, but has no "
                "number: say where in the document it stands"
            )
        other = documents.setdefault(chunk.document, {}).setdefault(chunk.number, chunk)
        if other is not chunk:
            raise PromptError(
                f"chunks {shorten(other.id)} and {shorten(chunk.id)} are both number "
                f"{chunk.number} of document {shorten(chunk.document)}: number them apart"
            )
    before: dict[str, Chunk] = {}
    for document in documents.values():
        ordered = [document[number] for number in sorted(document)]
        before |= {chunk.id: other for other, chunk in pairwise(ordered)}
    return before


def _read_chunk(line: str) -> Chunk:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"it is no JSON ({error}): write one object a line") from None
    if not isinstance(row, Mapping):
        raise PromptError(f"it holds {shorten(row)}: write an object with id and text")
    return Chunk(
        id=_read_name(row, "id"),
        text=_read_text(row),
        title=_read_title(row),
        document=None if row.get("document") is None else _read_name(row, "document"),
        number=_read_number(row),
    )


def _read_name(row: Mapping[str, Any], key: str) -> str:
    """An id or a document: some text, or an int that stands for it."""
    value = row.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise PromptError(f"its {key} is {shorten(value)}: write some text")
    return value


def _read_text(row: Mapping[str, Any]) -> str:
    text = row.get("text")
    if not isinstance(text, str) or not text.strip():
        raise PromptError(f"its text is {shorten(text)}: write some text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PromptError(
            "its text has half a surrogate pair, which is no text: write valid Unicode"
        ) from None
    return text


def _read_title(row: Mapping[str, Any]) -> str:
    title = row.get("title")
    if not isinstance(title, str | None):
        raise PromptError(f"its title is {shorten(title)}: write some text, or leave it out")
    return title or ""


def _read_number(row: Mapping[str, Any]) -> int | None:
    number = row.get("number")
    if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
        raise PromptError(f"its number is {shorten(number)}: write an int, or leave it out")
    return number
