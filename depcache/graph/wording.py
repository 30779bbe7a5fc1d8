# SPDX-License-Identifier: Apache-2.0
"""What the words of a question have to do with the relations of a graph, without a model.

Words are compared by their stems and by a short table of words that questions and relations use
for one thing: "who wrote it" asks for `author`. A path's relations are held against the words in
the order in which one would say them: from the entity outwards, so "the director of the writer's
films" is `written_by`, `written_by`, `directed_by`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from depcache.graph.naming import fold, readings, words_of
from depcache.prompt.paths import INVERSE_RELATION

# Words that name nothing by themselves: a graph may know films called "What" and "It".
FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about all also an and any are as at be been but by can could did do does for from had "
        "has have he her him his how i if in into is it its just me more most my no not of on one "
        "or our out she should so some such than that the their them then there these they this "
        "those to up us was we were what when where which while who whom whose why will with "
        "would you your",
    )
)
# Kinds of things, which questions put before a name: "the film Alien".
KIND_WORDS = frozenset(
    re.findall(
        r"\w+",
        "album albums band bands book books city cities company companies country countries date "
        "film films game games group groups kind kinds man men movie movies name named names "
        "people person persons place places series show shows song songs story stories team teams "
        "thing things title type types woman women word words year years",
    )
)
_GROUPS = """
    act acted actor actors actress actresses cast star stars starred starring appear appeared role
    address city live lived lives located location place residence town where
    author screenplay screenwriter script write writer writes written wrote
    birth birthday birthplace born
    birthday date day time when year
    birthplace place
    brother sibling siblings sister
    career employer employment job occupation profession work worked works
    child children daughter heir kid kids offspring son
    citizen citizenship country nation nationality
    college educated education school studied university
    compose composed composer music
    couple husband marriage married marry partner spouse wed wife
    category genre genres kind style type types
    dad father fathers mom mother mum parent parents
    dead death deceased die died dies
    describe described keyword keywords subject tag tags theme topic topics
    established establish foundation founded founder inception
    faith religion
    gender sex
    language languages speak spoken
    own owned owner owns
    perform performed performer sang sing singer sings
    company label studio
""".strip().splitlines()
_SUFFIXES = (
    "ations", "ation", "ality", "ings", "ing", "ions", "ion", "ers", "ors", "ies", "er", "or",
    "ed", "es", "al", "ly", "s", "e", "y",
)  # fmt: skip
_MIN_STEM = 3
_NGRAM = 4
_MAX_WORDS = 14
_MAX_WORDY = 2
_OF_STEM, _OF_GROUP, _OF_LETTERS = 1.0, 0.8, 0.5


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    """A word without its ending: `direct` of directed, director and directors."""
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= _MIN_STEM:
            word = word[: -len(suffix)]
            break
    # starred: star
    return word[:-1] if len(word) > _MIN_STEM and word[-1] == word[-2] else word


_GROUPS_OF: dict[str, set[int]] = {}
for _number, _line in enumerate(_GROUPS):
    for _word in _line.split():
        _GROUPS_OF.setdefault(stem(_word), set()).add(_number)


def content_words(name: str) -> tuple[str, ...]:
    """The words of a relation or a name that say something."""
    words = words_of(name)
    return tuple(word for word in words if word not in FUNCTION_WORDS) or words


@lru_cache(maxsize=20_000)
def kinship(word: str, other: str) -> float:
    """How far two words mean one thing, 0 to 1."""
    mine, others = stem(word), stem(other)
    if mine == others:
        return _OF_STEM
    if not _GROUPS_OF.get(mine, set()).isdisjoint(_GROUPS_OF.get(others, ())):
        return _OF_GROUP
    return _OF_LETTERS if _grams(mine) & _grams(others) else 0.0


def _grams(word: str) -> set[str]:
    return {word[i : i + _NGRAM] for i in range(len(word) - _NGRAM + 1)}


class Asked:
    """The words of a question about an entity, to score relations by.

    words  those that say something, in the order of the question, without the entity's name
    """

    def __init__(self, question: str, entity: str) -> None:
        text = fold(question)
        before, after = text, ""
        for reading in sorted(set(readings(entity)), key=lambda r: (-len(r), r)):
            if reading and (found := re.search(rf"(?<!\w){re.escape(reading)}(?!\w)", text)):
                before, after = text[: found.start()], text[found.end() :]
                break
        self.text = text
        first, rest = _asking(before)[-_MAX_WORDS:], _asking(after)[:_MAX_WORDS]
        self.words = (*first, *rest)
        near, far = list(range(len(first)))[::-1], list(range(len(first), len(self.words)))
        # From the entity outwards; whether what stands before or behind it comes first is open.
        self._orders = [near + far] + ([far + near] if near and far else [])
        self._telling = [word for word in self.words if len(word) >= _NGRAM]
        self._known: dict[str, np.ndarray] = {}

    def score_kinds(self, kinds: Sequence[Sequence[str]]) -> np.ndarray:
        """float64 (len(kinds),): how well sequences of relations say what is asked.

        Grows with every relation that has its word, more so in the order of the words, and
        falls with every relation that has none.
        """
        if not kinds:
            return np.zeros(0)
        number_of: dict[str, int] = {}
        width = max(map(len, kinds))
        rows = np.zeros((len(kinds), width), dtype=np.intp)  # 0: no relation
        for row, kind in zip(rows, kinds, strict=True):
            for hop, relation in enumerate(kind):
                row[hop] = number_of.setdefault(relation, len(number_of) + 1)
        num_words = len(self.words)
        match = np.zeros((len(number_of) + 1, num_words))
        for relation, number in number_of.items():
            match[number] = self._match(relation)
        lengths = (rows > 0).sum(axis=1)
        if not num_words:
            return -_HOP_COST * lengths
        by_hop = match[rows]  # (kinds, hops, words)
        covered = by_hop.max(axis=1).sum(axis=1)
        supported = by_hop.max(axis=2).sum(axis=1)
        aligned = np.max([_align(by_hop[:, :, order]) for order in self._orders], axis=0)
        return aligned + 0.5 * covered + 0.25 * supported - _HOP_COST * lengths

    def score_name(self, name: str) -> float:
        """1 for a name that the question holds whole, a third for one with a word of it."""
        plain = name.casefold()
        if (
            len(plain) > 2
            and plain in self.text
            and re.search(rf"\b{re.escape(plain)}\b", self.text)
        ):
            return 1.0
        return 1 / 3 if any(word in plain for word in self._telling) else 0.0

    def _match(self, relation: str) -> np.ndarray:
        known = self._known.get(relation)
        if known is None:
            words = content_words(relation.removeprefix(INVERSE_RELATION))
            known = self._known[relation] = np.array(
                [max((kinship(asked, word) for word in words), default=0.0) for asked in self.words]
            )
        return known


_HOP_COST = 0.3


def _align(by_hop: np.ndarray) -> np.ndarray:
    """The heaviest common subsequence of hops and words; `by_hop` is (kinds, hops, words)."""
    num_kinds, num_hops, num_words = by_hop.shape
    best = np.zeros((num_words + 1, num_kinds))
    for hop in range(num_hops):
        fresh = best.copy()
        for word in range(num_words):
            with_it = best[word] + by_hop[:, hop, word]
            np.maximum(fresh[word + 1], with_it, out=fresh[word + 1])
            np.maximum(fresh[word + 1], fresh[word], out=fresh[word + 1])
        best = fresh
    return best[-1]


def _asking(text: str) -> list[str]:
    words = re.findall(r"\w+", text)
    return [w for w in words if w in ("when", "where") or (w not in FUNCTION_WORDS and len(w) > 1)]


def stems_of(relations: Iterable[str]) -> frozenset[str]:
    """The stems of all words of these relations, and of the words that mean the same.

    Of short ones only: one that is half a sentence may hold any word, names among them.
    """
    short = (words for relation in relations if len(words := content_words(relation)) <= _MAX_WORDY)
    stems = {stem(word) for words in short for word in words}
    groups = {number for found in stems for number in _GROUPS_OF.get(found, ())}
    return frozenset(stems | {s for s, numbers in _GROUPS_OF.items() if numbers & groups})
