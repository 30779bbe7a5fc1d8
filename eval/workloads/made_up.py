# SPDX-License-Identifier: Apache-2.0
"""Questions over made-up worlds that no model was trained on, a few of each world.

They are drawn as the training's were (`models.tiny.worlds`), from a seed of their own, so a small
model answers most of them, and what is lost is lost by how their facts are read. Each is of two
hops or more and has one right answer. Questions of a world have much in common: intervals are to
be drawn over worlds (`eval.chunks.summary`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice

from depcache.demo.sample import final_answer
from depcache.errors import ConfigError
from depcache.training.examples import Example
from eval.quality.prompts import Asked
from models.tiny.worlds import UNKNOWN, make_examples

MADE_UP = "made_up"

NUM_OF_WORLD = 4
"""Questions of each world; a world that has fewer is left out."""

MIN_PATHS = 8
"""Fewer are read as one chunk or two, of which none is far from the other."""

_SEED = 987_654_321
_MIN_ARROWS = 4  # of two hops


def make_made_up(number: int, max_paths: int) -> list[Asked]:
    """The first questions, `number` of them; the last world may be cut short.

    max_paths  of a question. Raises ConfigError below MIN_PATHS, as no world would have enough
    """
    if max_paths < MIN_PATHS:
        raise ConfigError(
            f"{max_paths} paths are too few for {MADE_UP}: allow at least {MIN_PATHS}"
        )
    return list(islice(_draw(max_paths), number))


def _draw(max_paths: int) -> Iterator[Asked]:
    examples = make_examples(_SEED, max_paths=max_paths, num_questions=3 * NUM_OF_WORLD)
    number = 0
    for paths, group in groupby(examples, key=lambda example: example.paths):
        usable = [example for example in group if _is_usable(example)]
        if len(paths) < MIN_PATHS or len(usable) < NUM_OF_WORLD:
            continue
        for example in usable[:NUM_OF_WORLD]:
            answers = (final_answer(example.answer),)
            yield Asked(example.question, answers, paths, world=str(number))
        number += 1


def _is_usable(example: Example) -> bool:
    evidence = example.answer.split("\n")[0]
    is_answered = example.answer != UNKNOWN and not example.alternatives
    return is_answered and evidence.count(" -> ") >= _MIN_ARROWS
