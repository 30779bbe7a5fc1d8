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


type TextBehind = str | Sequence[str] | None
"""What a chunk stands behind: a text, several that were computed alone, or nothing."""


def place_behind(
    chunks: Sequence[str], behind: Iterable[TextBehind], separator: str
) -> tuple[str | tuple[str, ...] | None, ...]:
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
    placed: dict[str, str | tuple[str, ...] | None] = {}
    for number, (chunk, given) in enumerate(zip(chunks, texts, strict=True)):
        own = None if given is None else _place(given, separator)
        if own == ():
            raise PromptError(
                f"what chunk {number} stands behind is {shorten(given)}: send some text, a list of "
                "texts, or None"
            )
        if placed.setdefault(chunk, own) != own:
            raise PromptError(
                f"chunk {number} is there twice, behind different texts: send it once"
            )
    return tuple(placed.values())


def _place(given: str | Sequence[str], separator: str) -> str | tuple[str, ...]:
    """The same behind the separator; () where it is no text and no texts."""
    texts = (given,) if isinstance(given, str) else given
    if not isinstance(texts, Sequence):
        return ()
    if not all(isinstance(text, str) and text.strip() for text in texts):
        return ()
    return separator + given if isinstance(given, str) else tuple(separator + t for t in texts)
