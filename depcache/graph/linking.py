# SPDX-License-Identifier: Apache-2.0
"""Find the entities of a graph that a text names: exactly or by an alias, then almost.

Names and text are compared without case, accents and width (NFKD), and with every run of white
space as one space; a name begins and ends where a word does. Of names that overlap the longest
wins. Only where nothing matches so, names are compared letter by letter (rapidfuzz).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from depcache.errors import ConfigError
from depcache.install import install_command

DEFAULT_THRESHOLD = 85.0
"""Similarity, 0 to 100 (`rapidfuzz.fuzz.ratio`), from which an unequal name counts as meant."""

EXACT = 100.0
MAX_WORDS = 8
"""Words of the longest piece of text that is compared letter by letter."""

_MIN_FUZZY_LEN = 4
_NEAREST_THRESHOLD = 50.0
_NAMES_AT_ONCE = 50_000
# A name that is one of these is meant only where it is written as a name: the graph may know
# films called "What" and "It".
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about all also an and any are as at be been but by can could did do does for from had "
        "has have he her him his how i if in into is it its just me more most my no not of on one "
        "or our out she should so some such than that the their them then there these they this "
        "those to up us was we were what when where which while who whom whose why will with "
        "would you your",
    )
)


class Link(NamedTuple):
    """A place in a text that names an entity: `text[start:stop]`.

    score  100 for a name or an alias, below for a similar one
    """

    entity: str
    start: int
    stop: int
    score: float


@dataclass(frozen=True, slots=True)
class _Folded:
    """A folded text; its character i comes from the original's character `origins[i]`."""

    text: str
    origins: Sequence[int]


class EntityLinker:
    """Finds the names of one graph, as they were when it was made.

    names      the entities
    aliases    entity to further names
    threshold  see DEFAULT_THRESHOLD; above 100 no similar name is taken

    Raises ConfigError where pyahocorasick or rapidfuzz is not installed.
    """

    def __init__(
        self,
        names: Iterable[str],
        aliases: Mapping[str, Sequence[str]] | None = None,
        *,
        threshold: float = DEFAULT_THRESHOLD,
    ) -> None:
        self._threshold = threshold
        self._entities: dict[str, list[str]] = {}  # folded name -> what it may stand for
        for name in names:
            self._add(name, name)
        for entity, others in (aliases or {}).items():
            for other in others:
                self._add(other, entity)

        self._automaton = _import("ahocorasick").Automaton()
        for folded in self._entities:
            self._automaton.add_word(folded, folded)
        if self._entities:
            self._automaton.make_automaton()

    def _add(self, name: str, entity: str) -> None:
        folded = fold(name)
        if folded:
            entities = self._entities.setdefault(folded, [])
            if entity not in entities:
                entities.append(entity)

    def link(self, text: str, *, max_entities: int | None = None) -> list[Link]:
        """The entities that `text` names, each once, in its order.

        max_entities  keeps the longest names

        Entities whose names differ in case or accents only are told apart by the spelling in
        the text; where it fits none of them, all are meant.
        """
        if not self._entities:
            return []
        folded = _fold(text)
        found = self._find_exact(text, folded) or self._find_similar(text, folded)
        first: dict[str, Link] = {}
        for link in found:
            first.setdefault(link.entity, link)
        kept = list(first.values())
        if max_entities is not None and len(kept) > max_entities:
            kept.sort(key=lambda link: (-link.score, link.start - link.stop, link.start))
            kept = kept[:max_entities]
        return sorted(kept, key=lambda link: (link.start, link.entity))

    def nearest(self, text: str, limit: int = 3) -> list[str]:
        """Entities with the names most like the text, or like a part of it; best first."""
        folded = _fold(text)
        pieces = list(dict.fromkeys([folded.text, *(p for p, _, _ in _pieces(folded.text))]))
        best: dict[str, float] = {}
        for _, name, score in self._compare(pieces, _NEAREST_THRESHOLD, limit):
            for entity in self._entities[name]:
                best[entity] = max(score, best.get(entity, 0.0))
        return sorted(best, key=lambda entity: (-best[entity], entity))[:limit]

    def _find_exact(self, text: str, folded: _Folded) -> list[Link]:
        matches: list[tuple[int, int, str]] = []
        for last, name in self._automaton.iter(folded.text):
            start, stop = last + 1 - len(name), last + 1
            if _is_whole(folded.text, start, stop):
                matches.append((start, stop, name))
        links: list[Link] = []
        for start, stop, name in _longest(matches):
            span = folded.origins[start], folded.origins[stop - 1] + 1
            written = text[span[0] : span[1]]
            is_named = written[:1].isupper() and span[0] > 0
            if name in _FUNCTION_WORDS and not is_named and name != folded.text:
                continue
            entities = self._entities[name]
            for entity in [written] if written in entities else entities:
                links.append(Link(entity, *span, EXACT))
        return links

    def _find_similar(self, text: str, folded: _Folded) -> list[Link]:
        pieces: dict[str, list[tuple[int, int]]] = {}
        for piece, start, stop in _pieces(folded.text):
            pieces.setdefault(piece, []).append((folded.origins[start], folded.origins[stop - 1]))
        # Where the text writes names as names, only those are looked at.
        cased = [
            piece
            for piece, spans in pieces.items()
            if any(re.search(r"[^\W\d_]", text[a]) and text[a].isupper() and a for a, _ in spans)
        ]
        scores: dict[tuple[int, int, str], float] = {}
        for piece, name, score in self._compare(cased or list(pieces), self._threshold, 1):
            for first, last in pieces[piece]:
                scores[first, last + 1, name] = score
        ranked = sorted(scores, key=lambda m: (-scores[m] * (m[1] - m[0]), m))
        links: list[Link] = []
        for start, stop, name in ranked:
            if all(stop <= link.start or link.stop <= start for link in links):
                entity = self._entities[name][0]
                links.append(Link(entity, start, stop, scores[start, stop, name]))
        return links

    @cached_property
    def _folded_names(self) -> list[str]:
        return sorted(name for name in self._entities if len(name) >= _MIN_FUZZY_LEN)

    def _compare(
        self, pieces: Sequence[str], threshold: float, limit: int
    ) -> list[tuple[str, str, float]]:
        """(piece, folded name, score) of the `limit` most similar names of each piece."""
        process, fuzz = _import("rapidfuzz.process"), _import("rapidfuzz.fuzz")
        names = self._folded_names
        if not pieces or not names or threshold > EXACT:
            return []
        found: list[tuple[str, str, float]] = []
        for begin in range(0, len(names), _NAMES_AT_ONCE):
            some = names[begin : begin + _NAMES_AT_ONCE]
            scores = process.cdist(
                pieces, some, scorer=fuzz.ratio, score_cutoff=threshold, dtype=np.float32
            )
            for row, column in np.argwhere(scores).tolist():
                found.append((pieces[int(row)], some[int(column)], float(scores[row, column])))
        found.sort(key=lambda match: (match[0], -match[2], match[1]))
        kept: list[tuple[str, str, float]] = []
        for match in found:
            if sum(1 for other in kept[-limit:] if other[0] == match[0]) < limit:
                kept.append(match)
        return kept


def fold(text: str) -> str:
    """The form in which names are compared; may be empty."""
    return _fold(text).text


def _fold(text: str) -> _Folded:
    if text.isascii() and not re.search(r"[^ -~]|  ", text):
        stripped = text.lstrip(" ")
        lead = len(text) - len(stripped)
        return _Folded(stripped.rstrip(" ").lower(), range(lead, len(text)))
    letters: list[str] = []
    origins: list[int] = []
    for origin, letter in enumerate(text):
        if letter.isspace():
            if letters and letters[-1] != " ":
                letters.append(" ")
                origins.append(origin)
            continue
        for part in unicodedata.normalize("NFKD", letter).casefold():
            if not unicodedata.combining(part):
                letters.append(_PLAIN.get(part, part))
                origins.append(origin)
    if letters and letters[-1] == " ":
        letters.pop()
    return _Folded("".join(letters), origins)


# Typographic signs that a keyboard does not have.
_PLAIN = {"‘": "'", "’": "'", "“": '"', "”": '"', "‐": "-", "‑": "-", "–": "-", "—": "-"}


def _is_whole(text: str, start: int, stop: int) -> bool:
    """Whether neither end of `text[start:stop]` lies within a word."""
    return not (
        (start > 0 and _is_inside(text[start - 1], text[start]))
        or (stop < len(text) and _is_inside(text[stop - 1], text[stop]))
    )


def _is_inside(before: str, after: str) -> bool:
    # Chinese, Japanese and Korean have no space where a name ends.
    return (
        (before.isalnum() or before == "_")
        and (after.isalnum() or after == "_")
        and not (_is_cjk(before) or _is_cjk(after))
    )


def _is_cjk(letter: str) -> bool:
    code = ord(letter)
    return 0x1100 <= code <= 0x11FF or 0x2E80 <= code <= 0xD7FF or code >= 0x20000


def _longest(matches: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Those that stay when longer ones go first and none may overlap another."""
    matches.sort(key=lambda match: (match[0] - match[1], match[0]))
    kept: list[tuple[int, int, str]] = []
    for match in matches:
        if all(match[1] <= start or stop <= match[0] for start, stop, _ in kept):
            kept.append(match)
    return kept


def _pieces(text: str) -> list[tuple[str, int, int]]:
    """Every run of up to MAX_WORDS words that may be a name, with its span."""
    words = [(m.start(), m.end()) for m in re.finditer(r"\w+", text)]
    pieces: list[tuple[str, int, int]] = []
    for first, (start, _) in enumerate(words):
        for _, stop in words[first : first + MAX_WORDS]:
            piece = text[start:stop]
            is_name = not _FUNCTION_WORDS.issuperset(re.findall(r"\w+", piece))
            if is_name and len(piece) >= _MIN_FUZZY_LEN:
                pieces.append((piece, start, stop))
    return pieces


def _import(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(
            f"finding entities needs {module.partition('.')[0]}: {install_command('graph')}"
        ) from None
