# SPDX-License-Identifier: Apache-2.0
"""Names of things that do not exist: random syllables, or plain words put together anew."""

from __future__ import annotations

import random
from importlib.resources import files
from typing import Any

import yaml


def _load_words() -> dict[str, Any]:
    text = files("depcache").joinpath("tiny", "words.yaml").read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    forms = data.pop("forms")
    return {name: tuple(words.split()) for name, words in data.items()} | {"forms": forms}


_WORDS = _load_words()
KINDS: tuple[str, ...] = tuple(_WORDS["forms"])
"""Of things that have names."""

_NUM_SYLLABLES = (1, 2, 2, 3)
_CODA_SHARE = 0.8


class Names:
    """Draws names, none of them twice, and none of `forbidden`."""

    def __init__(self, rng: random.Random, forbidden: frozenset[str] = frozenset()) -> None:
        self._rng = rng
        self._forbidden = forbidden
        self._used: set[str] = set()

    def draw(self, kind: str) -> str:
        """A new name for a thing of this kind."""
        while True:
            name = self._rng.choice(_WORDS["forms"][kind]).format_map(_Parts(self._rng))
            if name not in self._used and name not in self._forbidden:
                self._used.add(name)
                return name


class _Parts(dict[str, str]):
    """A part of a name for each placeholder, drawn when it is asked for."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def __getitem__(self, key: str) -> str:
        return self._word() if key == "word" else self._rng.choice(_WORDS[key])

    def _word(self) -> str:
        rng = self._rng
        word = ""
        for _ in range(rng.choice(_NUM_SYLLABLES)):
            word += rng.choice(_WORDS["onset"]) + rng.choice(_WORDS["vowel"])
        if rng.random() < _CODA_SHARE or len(word) < 3:
            word += rng.choice(_WORDS["coda"])
        return word[0].upper() + word[1:]
