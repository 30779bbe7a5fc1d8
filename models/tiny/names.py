# SPDX-License-Identifier: Apache-2.0
"""Names of things: random syllables or letters, plain words put together anew, or given names."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import yaml

from models.tiny.stages import RECIPE


def _load_words() -> dict[str, Any]:
    data = yaml.safe_load((RECIPE / "words.yaml").read_text(encoding="utf-8"))
    tables = {name: data.pop(name) for name in ("forms", "nouns")}
    return {name: tuple(words.split()) for name, words in data.items()} | tables


_WORDS = _load_words()
KINDS: tuple[str, ...] = tuple(_WORDS["forms"])
"""The kinds of things that have names."""
NOUNS: dict[str, list[str]] = _WORDS["nouns"]
"""What a thing of a kind may be called; not every kind has a noun."""

_NUM_SYLLABLES = (1, 1, 2, 2, 3)
_CODA_SHARE = 0.8
_NATURAL_SHARE = 0.4  # of the names, where natural ones are given
_LETTERS_SHARE = 0.15  # of the words: no syllables but letters, so that any token gets copied


class Names:
    """Draws names, none of them twice, and none of `forbidden`.

    natural  names of real things, used for any kind; none: all names are made up
    """

    def __init__(
        self,
        rng: random.Random,
        forbidden: frozenset[str] = frozenset(),
        natural: Sequence[str] = (),
    ) -> None:
        self._rng = rng
        self._forbidden = forbidden
        self._natural = natural
        self._used: set[str] = set()

    def draw(self, kind: str) -> str:
        """A new name for a thing of this kind."""
        while True:
            if self._natural and self._rng.random() < _NATURAL_SHARE:
                name = self._rng.choice(self._natural)
            else:
                name = self._rng.choice(_WORDS["forms"][kind]).format_map(_Parts(self._rng))
            if name not in self._used and name not in self._forbidden:
                self._used.add(name)
                return name


class _Parts(dict[str, str]):
    """A part of a name for each placeholder, drawn when it is asked for."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def __getitem__(self, key: str) -> str:
        if key == "word":
            return self._word()
        if key == "twice":  # `R. R.`: what follows the first one is not what follows the second
            initial = self._rng.choice(_WORDS["initial"])
            return f"{initial}. {initial}."
        return self._rng.choice(_WORDS[key])

    def _word(self) -> str:
        rng = self._rng
        if rng.random() < _LETTERS_SHARE:
            letters = "".join(rng.choices(_WORDS["letter"], k=rng.randint(3, 9)))
            return letters[0].upper() + letters[1:]
        word = ""
        for _ in range(rng.choice(_NUM_SYLLABLES)):
            word += rng.choice(_WORDS["onset"]) + rng.choice(_WORDS["vowel"])
        if rng.random() < _CODA_SHARE or len(word) < 3:
            word += rng.choice(_WORDS["coda"])
        return word[0].upper() + word[1:]
