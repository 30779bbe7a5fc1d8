# SPDX-License-Identifier: Apache-2.0
"""Requests over the entities of a made-up graph, a few entities each, popular ones more often."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from depcache.prompt.render import RenderedPrompt, render

RELATIONS = ("founded by", "located in", "known for", "part of", "named after")
ZIPF = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, and the entities that it is about."""

    entities: tuple[int, ...]
    prompt: RenderedPrompt


def make_requests(
    num_requests: int, per_request: int, *, num_entities: int, seed: int
) -> list[Request]:
    """Returns requests of `per_request` different entities each, drawn by Zipf's law.

    All facts of an entity come with it, as retrieval with one hop gives them.
    """
    rng = np.random.default_rng(seed)
    names = [_name(rng, number) for number in range(num_entities)]
    facts = [_facts(rng, name, names) for name in names]
    weights = -ZIPF * np.log(np.arange(1, num_entities + 1))
    requests = []
    for number in range(num_requests):
        # The largest of weights with Gumbel noise are a draw without replacement.
        drawn = np.argpartition(weights + rng.gumbel(size=num_entities), -per_request)
        entities = tuple(int(entity) for entity in drawn[-per_request:])
        paths = [path for entity in entities for path in facts[entity]]
        question = f"What is {names[entities[0]]} known for? ({number})"
        requests.append(Request(entities, render(paths, question)))
    return requests


def _facts(rng: np.random.Generator, name: str, names: list[str]) -> list[tuple[str, str, str]]:
    return [(name, relation, names[int(rng.integers(len(names)))]) for relation in RELATIONS]


def _name(rng: np.random.Generator, number: int) -> str:
    syllables = rng.choice(["ba", "ke", "lo", "mi", "nu", "ra", "se", "to", "vi"], size=3)
    return "".join(syllables).capitalize() + f" {number}"
