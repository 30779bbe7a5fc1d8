# SPDX-License-Identifier: Apache-2.0
"""Requests over the entities of a made-up graph, a few entities each, popular ones more often."""

from __future__ import annotations

import random
from itertools import islice

from depcache.prompt.render import RenderedPrompt, render
from eval.workloads.patterns import make_zipfian

RELATIONS = ("founded by", "located in", "known for", "part of", "named after")
SYLLABLES = ("ba", "ke", "lo", "mi", "nu", "ra", "se", "to", "vi")


def make_requests(
    num_requests: int, per_request: int, *, num_entities: int, seed: int
) -> list[RenderedPrompt]:
    """Returns prompts about `per_request` different entities each, drawn by Zipf's law.

    All facts of an entity come with it, as retrieval with one hop gives them.
    """
    rng = random.Random(seed)
    names = ["".join(rng.choices(SYLLABLES, k=3)) + f" {number}" for number in range(num_entities)]
    facts = {
        name: [(name, relation, rng.choice(names)) for relation in RELATIONS] for name in names
    }
    drawn = make_zipfian(names, num_entities=per_request, seed=seed)
    return [
        render(
            [path for name in entities for path in facts[name]],
            f"What is {entities[0]} known for? ({number})",
        )
        for number, entities in enumerate(islice(drawn, num_requests))
    ]
