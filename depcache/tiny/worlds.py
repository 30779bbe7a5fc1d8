# SPDX-License-Identifier: Apache-2.0
"""Made-up graphs and questions about them: what depcache-tiny learns to read from.

Every world is new, so nothing in it can be known by heart: what is to be learned is to find the
path that a question describes, to say it, and to name where it ends.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import networkx as nx

from depcache.graph.retrieval import Retriever
from depcache.prompt.paths import Path
from depcache.tiny.names import Names
from depcache.tiny.relations import ask, load_relations
from depcache.training.examples import Example

_SIZES = {"person": (3, 7), "city": (2, 5), "state": (1, 3)}
_OTHERS = (0, 3)
FACT_SHARE = 0.6
"""Of what a thing may be the subject of, so much is stated."""


def make_world(rng: random.Random, names: Names) -> nx.MultiDiGraph:
    """A small graph of a few things of every kind; edges carry `relation`."""
    things = {
        kind: [names.draw(kind) for _ in range(rng.randint(*_SIZES.get(kind, _OTHERS)))]
        for kind in sorted({kind for r in load_relations().values() for j in r.joins for kind in j})
    }
    graph = nx.MultiDiGraph()
    for relation in load_relations().values():
        for subjects, objects in relation.joins:
            for subject in things[subjects]:
                if rng.random() > FACT_SHARE:
                    continue
                choices = [each for each in things[objects] if each != subject]
                for obj in rng.sample(choices, min(len(choices), rng.randint(1, relation.most))):
                    if not graph.has_edge(obj, subject):
                        graph.add_edge(subject, obj, relation=relation.name)
    return graph


def answer_of(path: Path) -> str:
    """What the model is to say: the evidence as it stands in the facts, then where it ends."""
    return f"{' -> '.join(path)}\nAnswer: {path[-1]}"


def make_examples(
    seed: int,
    *,
    num_questions: int = 6,
    num_hops: int = 3,
    max_paths: int = 30,
    forbidden: frozenset[str] = frozenset(),
) -> Iterator[Example]:
    """Examples without end, `num_questions` in a row over the same paths.

    forbidden  names that must not be drawn, because they are asked about in an evaluation
    """
    rng = random.Random(seed)
    while True:
        graph = make_world(rng, Names(rng, forbidden))
        topics = [node for node in graph if graph.degree(node) > 1]
        if not topics:
            continue
        topic = rng.choice(topics)
        retriever = Retriever(graph, pruner="none", max_hops=num_hops)
        found = retriever.retrieve(topic, entities=[topic], num_paths=rng.randint(4, max_paths))
        walks = _walks(found.paths)
        for walk in rng.sample(walks, min(num_questions, len(walks))):
            question = ask(topic, walk[1::2], rng)
            yield Example(question, tuple(found.paths), answer_of(walk))


def _walks(paths: tuple[Path, ...]) -> list[Path]:
    """What can be asked for: the beginnings of the paths, the first of each kind of walk."""
    first: dict[tuple[str, ...], Path] = {}
    for path in paths:
        for stop in range(3, len(path) + 1, 2):
            first.setdefault(path[1:stop:2], path[:stop])
    return list(first.values())
