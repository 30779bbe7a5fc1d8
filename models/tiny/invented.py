# SPDX-License-Identifier: Apache-2.0
"""Relations that a world has for itself: new words in their names, and in what is asked.

Who has learned thirty relations by heart reads no other graph. Of these no two worlds have the
same, some of their words are no words at all, and a thing has several of them: what a question
says has to be found in the facts, and the name copied as it stands there.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import yaml

from models.tiny.names import KINDS, NOUNS
from models.tiny.relations import Relation, load_relations
from models.tiny.stages import RECIPE

_NUM_KINDS = (2, 5)
_NUM_LEAVING = (2, 4)  # relations of the same kind of thing, so that the words decide
_NUM_HUBS = 3
_KNOWN_SHARE = 0.2  # of the relations of `relations.yaml`, in a world with relations of its own
_FACT_SHARE = 0.9
_SEVERAL_SHARE = 0.1  # of the relations, with more than one object of a subject
_PSEUDO_SHARE = 0.4  # of the words that are no words
_RANK_SHARE = 0.3  # of the roles: "chief warden"
_WEIGHT = 2.0
_PEOPLE = ("person", "crew")
_TOPICS = {"object": "of_object", "subject": "of_subject"}


def _camel(words: list[str]) -> str:
    return words[0] + "".join(word.capitalize() for word in words[1:])


SPELLINGS: dict[str, Callable[[list[str]], str]] = {
    "phrase": " ".join,
    "camel": _camel,
    "snake": "_".join,
    "upper": lambda words: "_".join(words).upper(),
}
"""How a graph writes the names of its relations; one graph, one way."""

_SPELLED = ("phrase", "phrase", "phrase", "phrase", "camel", "snake", "upper")


def draw_relations(
    rng: random.Random, forbidden: frozenset[str] = frozenset()
) -> dict[str, Relation]:
    """Relations of one world by name: new ones, and a few of `relations.yaml`.

    forbidden  names that no relation has, however it is written
    """
    kinds = rng.sample(KINDS, rng.randint(*_NUM_KINDS))
    spelling = SPELLINGS[rng.choice(_SPELLED)]
    found: dict[str, Relation] = {}
    used: set[str] = set()
    for kind in kinds[:_NUM_HUBS]:
        for _ in range(rng.randint(*_NUM_LEAVING)):
            words, word, texts = _draw_wording(rng, kind, other := rng.choice(kinds))
            name = spelling(words)
            # A question about two relations with the same word would not say which it means.
            if word in used or not forbidden.isdisjoint((name, " ".join(words))):
                continue
            used.add(word)
            most = 1 + (rng.random() < _SEVERAL_SHARE)
            found[name] = Relation(name, ((kind, other),), most, _FACT_SHARE, _WEIGHT, **texts)
    known = {n: r for n, r in load_relations().items() if rng.random() < _KNOWN_SHARE}
    return known | found


def _draw_wording(
    rng: random.Random, subject: str, obj: str
) -> tuple[list[str], str, dict[str, tuple[str, ...]]]:
    """Returns the words of a name, the one that makes it, and what is asked about it.

    subject, obj  kinds of thing that a fact of it joins
    """
    data = _load()
    family = rng.choice(tuple(data["families"]))
    texts = data["families"][family]
    is_forward = not texts["backward"] or rng.random() < 0.5
    word, parts = _draw_word(rng, family)
    ends = (subject, obj) if is_forward else (obj, subject)
    for letter, kind in zip("so", ends, strict=True):
        parts[letter] = rng.choice(NOUNS.get(kind, ["thing"]))
        parts[f"what_{letter}"] = "Who" if kind in _PEOPLE else "What"
        parts[f"whom_{letter}"] = "whom" if kind in _PEOPLE else "what"
        parts[f"which_{letter}"] = "whom" if kind in _PEOPLE else "which"
    name = rng.choice(texts["forward" if is_forward else "backward"]).format_map(parts)
    asked = {
        key: tuple(text.format_map(parts | {"x": "{x}"}) for text in texts[key])
        for end, phrase in _TOPICS.items()
        for key in (end, phrase)
    }
    if not is_forward:
        asked = {_mirrored(key): text for key, text in asked.items()}
    return name.split(), word, asked


def _mirrored(key: str) -> str:
    """`of_subject` for `of_object`, ..."""
    old, new = ("object", "subject") if key.endswith("object") else ("subject", "object")
    return key.replace(old, new)


def _draw_word(rng: random.Random, family: str) -> tuple[str, dict[str, str]]:
    """Returns a word for a relation of that family, and the forms of it that texts name."""
    data = _load()
    is_pseudo = rng.random() < _PSEUDO_SHARE
    word = pseudo_word(rng) if is_pseudo else rng.choice(data[family])
    base, _, at = word.partition("-")
    at = at or rng.choice(data["at"])
    parts = {"at": at, "At": at.capitalize()}
    if family == "role":
        role = base + rng.choice(data["suffix"]) if is_pseudo else base
        rank = rng.choice(data["rank"]) if rng.random() < _RANK_SHARE else ""
        return base, parts | {"role": f"{rank} {role}".strip()}
    return base, parts | verb_forms(base)


def verb_forms(base: str) -> dict[str, str]:
    """Returns `base`, `third`, `past` and `agent`: repair, repairs, repaired, repairer."""
    third = re.sub(r"(s|x|z|sh|ch|o)$", r"\1e", base)
    third = re.sub(r"(?<![aeiou])y$", "ie", third)
    stem = re.sub(r"(?<![aeiou])y$", "i", base)
    # One short vowel and one consonant: shipped.
    stem = re.sub(r"^([^aeiou]*[aeiou]([bdgklmnprt]))$", r"\1\2", stem)
    stem = stem.removesuffix("e")
    agent = stem + ("or" if re.search(r"(at|ct)$", stem) else "er")
    return {"base": base, "third": f"{third}s", "past": f"{stem}ed", "agent": agent}


def pseudo_word(rng: random.Random) -> str:
    """Returns what could be English and is not: `blorrand`, `snaick`."""
    data = _load()
    word = ""
    for _ in range(rng.randint(1, 2)):
        word += rng.choice(data["onset"]) + rng.choice(data["vowel"])
    return word + rng.choice(data["coda"])


def words_of_names() -> frozenset[str]:
    """Returns all words that are no made-up ones, in every form that a name may have of them."""
    data = _load()
    found = {word for name in load_relations() for word in name.split()}
    for family in ("verb", "particle", "place"):
        for word in data[family]:
            base, _, at = word.partition("-")
            found |= {*verb_forms(base).values(), *([at] if at else [])}
    return frozenset(found).union(data["role"], data["rank"], data["at"], ("is", "has", "of", "by"))


@cache
def _load() -> Mapping[str, Any]:
    data = yaml.safe_load((RECIPE / "invented.yaml").read_text(encoding="utf-8"))
    return {key: value if key == "families" else value.split() for key, value in data.items()}
