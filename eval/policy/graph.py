# SPDX-License-Identifier: Apache-2.0
"""A graph of films drawn from a seed, for a machine that has no data set."""

from __future__ import annotations

import random
from pathlib import Path

_SYLLABLES = "ba be bo da do fe fi ga go ha ka ke la le lo ma mi mo na no pa ra ri ro sa so ta va"
_RELATIONS = (("directed_by", 1), ("written_by", 2), ("starred_actors", 4), ("has_genre", 2))


def write_made_graph(path: Path, *, num_films: int = 4000, seed: int = 0) -> Path:
    """Write the triples of `num_films` films and their people, tab-separated; `path`.

    About as dense as MetaQA: a film has nine triples, a person two or three films.
    """
    rng = random.Random(seed)
    syllables = _SYLLABLES.split()

    def name(num_words: int) -> str:
        words = ("".join(rng.choices(syllables, k=rng.randint(2, 4))) for _ in range(num_words))
        return " ".join(word.capitalize() for word in words)

    people = sorted({name(2) for _ in range(3 * num_films)})
    genres = [name(1) for _ in range(20)]
    films = list(dict.fromkeys(name(rng.randint(1, 4)) for _ in range(num_films)))
    lines: list[str] = []
    for film in films:
        for relation, count in _RELATIONS:
            tails = rng.sample(genres if relation == "has_genre" else people, count)
            lines += [f"{film}\t{relation}\t{tail}" for tail in tails]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
