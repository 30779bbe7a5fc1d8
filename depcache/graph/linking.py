# SPDX-License-Identifier: Apache-2.0
"""Find the entities of a graph that a text names: exactly or by an alias, then almost.

Names and text are compared in one normal form (`depcache.graph.naming`); a name begins and ends
where a word does. Of names that overlap the longest wins. A name that is an everyday word counts
only where it is written as a name or nothing else is named. Only where nothing matches at all,
names are compared letter by letter (rapidfuzz).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from depcache.errors import ConfigError
from depcache.graph.naming import Folded, fold, fold_text, readings, without_qualifier
from depcache.graph.wording import FUNCTION_WORDS, KIND_WORDS, stem, stems_of
from depcache.install_hints import install_command

DEFAULT_THRESHOLD = 85.0
"""Similarity, 0 to 100 (`rapidfuzz.fuzz.ratio`), from which an unequal name counts as meant."""

EXACT = 100.0
MAX_WORDS = 8
"""Words of the longest piece of text that is compared letter by letter."""

_MAX_EVERYDAY = 2  # "the story"; more words are a name
_MIN_FUZZY_LEN = 4
_NEAREST_THRESHOLD = 50.0
_NAMES_AT_ONCE = 50_000


class Link(NamedTuple):
    """A place in a text that names an entity: `text[start:stop]`.

    score  100 for a name or an alias, below for a similar one
    """

    entity: str
    start: int
    stop: int
    score: float


class EntityLinker:
    """Finds the names of one graph, as they were when it was made.

    names      the entities
    aliases    entity to further names
    relations  of the graph: a name that says the same ("director") is an everyday word
    threshold  see DEFAULT_THRESHOLD; above 100 no similar name is taken

    Raises ConfigError where pyahocorasick or rapidfuzz is not installed.
    """

    def __init__(
        self,
        names: Iterable[str],
        aliases: Mapping[str, Sequence[str]] | None = None,
        *,
        relations: Iterable[str] = (),
        threshold: float = DEFAULT_THRESHOLD,
    ) -> None:
        self._threshold = threshold
        self._everyday = stems_of(relations) | set(map(stem, KIND_WORDS))
        self._entities: dict[str, list[str]] = {}  # normal form -> what it may stand for
        unqualified: dict[str, list[str]] = {}
        for name in names:
            for reading in readings(name):
                self._add(reading, name)
            if (plain := without_qualifier(name)) is not None:
                for reading in readings(plain):
                    unqualified.setdefault(reading, []).append(name)
        for entity, others in (aliases or {}).items():
            for other in others:
                for reading in readings(other):
                    self._add(reading, entity)
        # "Mercury" may stand for "Mercury (planet)" where nothing else is called so.
        for reading, found in unqualified.items():
            if reading not in self._entities and len(set(found)) == 1:
                self._add(reading, found[0])

        self._automaton = _import("ahocorasick").Automaton()
        for folded in self._entities:
            self._automaton.add_word(folded, folded)
        if self._entities:
            self._automaton.make_automaton()

    def _add(self, reading: str, entity: str) -> None:
        if reading:
            entities = self._entities.setdefault(reading, [])
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
        strong, weak = self._find_exact(text)
        found = strong or self._find_similar(text, {link.entity for link in weak}) or weak
        first: dict[str, Link] = {}
        for link in found:
            first.setdefault(link.entity, link)
        kept = list(first.values())
        if max_entities is not None and len(kept) > max_entities:
            kept.sort(key=lambda link: (-link.score, link.start - link.stop, link.start))
            kept = kept[:max_entities]
        return sorted(kept, key=lambda link: (link.start, link.entity))

    def find(self, name: str) -> list[str]:
        """The entities of this name or alias, in any spelling; the one written so, if there is."""
        for reading in readings(name):
            if entities := self._entities.get(reading):
                return [name] if name in entities else list(entities)
        return []

    def nearest(self, text: str, limit: int = 3) -> list[str]:
        """Entities with the names most like the text, or like a part of it; best first."""
        folded = fold_text(text)
        pieces = list(dict.fromkeys([folded.text, *(p for p, _, _ in _pieces(folded.text))]))
        best: dict[str, float] = {}
        for _, name, score in self._compare(pieces, _NEAREST_THRESHOLD, limit):
            for entity in self._entities[name]:
                best[entity] = max(score, best.get(entity, 0.0))
        return sorted(best, key=lambda entity: (-best[entity], entity))[:limit]

    def _find_exact(self, text: str) -> tuple[list[Link], list[Link]]:
        """The names in the text, and those of them that are rather its ordinary words."""
        matches = dict.fromkeys(self._matches(text, fold_text(text)))
        split = fold_text(text, split_camel=True)
        matches |= dict.fromkeys(self._matches(text, split))
        named: list[tuple[int, int, str]] = []
        for start, stop, name in _longest(list(matches)):
            is_cased = text[start : start + 1].isupper() and start > 0
            if name not in FUNCTION_WORDS or is_cased or name == fold(text):
                named.append((start, stop, name))
        named = [match for match in named if not _is_qualifier(text, match, named)]
        # A text that writes names with capitals means none by a word that it writes without.
        has_cased = any(text[start:stop] != text[start:stop].lower() for start, stop, _ in named)
        strong: list[Link] = []
        weak: list[Link] = []
        for start, stop, name in named:
            written = text[start:stop]
            entities = self._entities[name]
            if written in entities:
                entities = [written]
            is_cased = written[:1].isupper() and start > 0
            is_plain = has_cased and " " not in name and written == written.lower()
            is_weak = not is_cased and (
                self._is_everyday(name) or (is_plain and all(e[:1].isupper() for e in entities))
            )
            links = weak if is_weak else strong
            links += [Link(entity, start, stop, EXACT) for entity in entities]
        return strong, weak

    def _matches(self, text: str, folded: Folded) -> Iterator[tuple[int, int, str]]:
        """Every name that stands in the text as whole words: its span in `text`, normal form."""
        for last, name in self._automaton.iter(folded.text):
            start, stop = last + 1 - len(name), last + 1
            if _is_whole(folded.text, start, stop):
                start, stop = folded.origins[start], folded.origins[stop - 1] + 1
                # A word of CamelCase is a name only as a whole.
                if _is_whole(text, start, stop):
                    yield start, stop, name

    def _is_everyday(self, name: str) -> bool:
        words = name.split(" ")
        return len(words) <= _MAX_EVERYDAY and all(
            word in FUNCTION_WORDS or stem(word) in self._everyday for word in words
        )

    def _find_similar(self, text: str, left_out: Collection[str]) -> list[Link]:
        folded = fold_text(text)
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
            if self._entities[name][0] in left_out or _numbers(piece) != _numbers(name):
                continue  # a number is never another one misspelt
            for first, last in pieces[piece]:
                scores[first, last + 1, name] = score
        for piece in cased:
            if (name := self._with_middle_names(piece)) is not None:
                for first, last in pieces[piece]:
                    scores[first, last + 1, name] = max(
                        self._threshold, scores.get((first, last + 1, name), 0.0)
                    )
        ranked = sorted(scores, key=lambda m: (-scores[m] * (m[1] - m[0]), m))
        links: list[Link] = []
        for start, stop, name in ranked:
            if all(stop <= link.start or link.stop <= start for link in links):
                entity = self._entities[name][0]
                links.append(Link(entity, start, stop, scores[start, stop, name]))
        return links

    def _with_middle_names(self, piece: str) -> str | None:
        """`reo franklin fortune` of `reo fortune`, where no other name begins and ends so."""
        words = piece.split(" ")
        found = self._by_ends.get((words[0], words[-1]), ())
        if len(words) < 2 or len(found) != 1 or self._threshold > EXACT:
            return None
        rest = iter(found[0].split(" "))
        return found[0] if all(word in rest for word in words) else None

    @cached_property
    def _by_ends(self) -> dict[tuple[str, str], list[str]]:
        """Normal forms of three words and more, by their first and last one."""
        found: dict[tuple[str, str], list[str]] = {}
        for name in self._entities:
            if name.count(" ") > 1:
                words = name.split(" ")
                found.setdefault((words[0], words[-1]), []).append(name)
        return found

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


def _is_whole(text: str, start: int, stop: int) -> bool:
    """Whether neither end of `text[start:stop]` lies within a word; the s of "who's" does."""
    return not (
        (start > 1 and text[start - 1] in "'’" and text[start - 2].isalnum())
        or (start > 0 and _is_inside(text[start - 1], text[start]))
        or (stop < len(text) and _is_inside(text[stop - 1], text[stop]))
    )


def _is_inside(before: str, after: str) -> bool:
    # Chinese, Japanese and Korean have no space where a name ends.
    return before.isalnum() and after.isalnum() and not (_is_cjk(before) or _is_cjk(after))


def _is_cjk(letter: str) -> bool:
    code = ord(letter)
    return 0x1100 <= code <= 0x11FF or 0x2E80 <= code <= 0xD7FF or code >= 0x20000


def _is_qualifier(
    text: str, match: tuple[int, int, str], others: Sequence[tuple[int, int, str]]
) -> bool:
    """Whether it stands in brackets right behind another name: "Maya (1999 film)"."""
    opening = text.rfind("(", 0, match[0])
    if opening < 0 or ")" in text[opening : match[0]] or ")" not in text[match[1] :]:
        return False
    behind = len(text[:opening].rstrip())
    return any(stop == behind for _, stop, _ in others)


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+", text)


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
            is_name = not FUNCTION_WORDS.issuperset(re.findall(r"\w+", piece))
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
