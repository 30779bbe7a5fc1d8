# SPDX-License-Identifier: Apache-2.0
"""Chunks of text as the context of a prompt: one after the other, each behind a separator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from depcache.errors import PromptError, shorten

CHUNK_SEPARATOR = "\n\n"


def join_chunks(chunks: Iterable[str], separator: str) -> tuple[str, tuple[int, ...]]:
    """The context of these chunks, and the code points of each with its separator.

    A chunk that stands there already is left out. Raises PromptError when one is empty or no text,
    or there are none.
    """
    context, lens, _ = join_rows(((chunk,) for chunk in list_chunks(chunks)), separator)
    return context, lens


def list_chunks(chunks: Iterable[str]) -> list[str]:
    """The chunks as a list; PromptError when they are a single text."""
    if isinstance(chunks, str):
        raise PromptError(f"the chunks are one text, {shorten(chunks)}: send a list of texts")
    return list(chunks)


def join_rows(
    rows: Iterable[Sequence[str]], separator: str
) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """The context of rows of chunks, the code points of each chunk, and the chunks of each row.

    A row that stands there already is left out; errors as `join_chunks`.
    """
    if not isinstance(separator, str) or not separator:
        raise PromptError(
            f"the separator is {shorten(separator)}: send some text, or a chunk would run into the "
            "one before it"
        )
    found: dict[tuple[str, ...], None] = {}
    for number, row in enumerate(rows):
        for chunk in row:
            if not isinstance(chunk, str) or not chunk.strip():
                raise PromptError(f"chunk {number} is {shorten(chunk)}: send some text")
        found[tuple(separator + chunk for chunk in row)] = None
    if not found:
        raise PromptError("there are no chunks: send at least one, or a plain prompt")
    texts = [text for row in found for text in row]
    return "".join(texts), tuple(map(len, texts)), tuple(map(len, found))


def place_behind(
    chunks: Sequence[str], behind: Iterable[str | None], separator: str
) -> tuple[str | None, ...]:
    """What each chunk of `join_chunks` stands behind, as that text is written behind a separator.

    behind  one for each of `chunks`; None for nothing

    Raises PromptError unless there is one for each, and equal chunks have equal ones.
    """
    texts = list(behind)
    if len(texts) != len(chunks):
        raise PromptError(
            f"there are {len(chunks)} chunks, but {len(texts)} texts that they stand behind: send "
            "one for each, None where there is none"
        )
    placed: dict[str, str | None] = {}
    for number, (chunk, text) in enumerate(zip(chunks, texts, strict=True)):
        if text is not None and (not isinstance(text, str) or not text.strip()):
            raise PromptError(
                f"what chunk {number} stands behind is {shorten(text)}: send some text, or None"
            )
        own = None if text is None else separator + text
        if placed.setdefault(chunk, own) != own:
            raise PromptError(
                f"chunk {number} is there twice, behind different texts: send it once"
            )
    return tuple(placed.values())
