# SPDX-License-Identifier: Apache-2.0
"""Words for made-up texts."""

from __future__ import annotations

from random import Random

# fmt: off
_WORDS = (
    "amber", "basin", "cedar", "delta", "ember", "fallow", "garnet", "harbour", "inlet",
    "juniper", "kettle", "lantern", "meadow", "nickel", "orchard", "pebble", "quarry", "ribbon",
    "saddle", "timber", "umber", "valley", "willow", "yonder", "zephyr", "anchor", "bramble",
    "copper", "drizzle", "fennel", "grove", "hollow", "island", "jasper", "kelp", "linen",
    "marble", "nettle", "otter", "plume",
)
_NAMES = (
    "Ines", "Bao", "Tomas", "Ruth", "Amara", "Piet", "Sunniva", "Dario", "Leila", "Oskar", "Mina",
    "Jorge",
)
# fmt: on


def word(rng: Random) -> str:
    """One word in small letters."""
    return rng.choice(_WORDS)


def words(rng: Random, number: int) -> str:
    """Returns so many words, with blanks between."""
    return " ".join(word(rng) for _ in range(number))


def names(rng: Random, number: int) -> list[str]:
    """Different first names."""
    return rng.sample(_NAMES, number)


def numbers(rng: Random, number: int) -> str:
    """Numbers with blanks between."""
    return " ".join(str(rng.randint(1, 5000)) for _ in range(number))


def prose(rng: Random, number: int) -> str:
    """Sentences, now and then with a dash, a bracket, a colon or a question."""
    ends = (".", ".", "!", "?", " - at last.", " (so they say).", ": nothing else.")
    return " ".join(
        f"{words(rng, rng.randint(4, 11)).capitalize()}{rng.choice(ends)}" for _ in range(number)
    )


def pick[T](rng: Random, *choices: T) -> T:
    """One of these."""
    return rng.choice(choices)


def maybe(rng: Random) -> int:
    """0 or 1."""
    return rng.randint(0, 1)
