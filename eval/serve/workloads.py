# SPDX-License-Identifier: Apache-2.0
"""What is asked: GraphRAG prompts over a graph, by a pattern or by the questions of a set.

zipfian:metaqa     10 entities a request, up to 30 two-hop paths each, drawn by the pattern
                   from a pool of entities (paper, section 6.1); uniform and temporal too
questions:demo     the questions of a set with the paths that retrieval finds for them; what
                   counts as right is known

A number at the end of the others, as in zipfian:metaqa:4000, asks for prompts of about so many
tokens as plain text: as many entities as it takes.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path as File

from depcache.demo.sample import load_questions, load_triples
from depcache.graph.base import GraphStore
from depcache.graph.retrieval import Retriever
from depcache.prompt.paths import Path
from eval.graphs import hold
from eval.quality.split import asked_of
from eval.sets import DataSet, SetError, load_folder
from eval.workload import KINDS, make_workload

DEMO = "demo"
QUESTIONS = "questions"
_NUM_FITTED = 30


@dataclass(frozen=True, slots=True)
class Spec:
    """One workload; equal specs over equal data are equal workloads.

    name          `pattern:graph[:tokens]`; the pattern is uniform, zipfian, temporal or questions
    num_entities  of a request; `fit` finds it where the name says tokens
    num_paths     of an entity, at most
    num_hops      of a path, at most
    pool          entities that are asked about; at most those that the graph has
    seed          of the pool, of the requests and of their order
    """

    name: str
    num_requests: int
    num_entities: int = 10
    num_paths: int = 30
    num_hops: int = 2
    pool: int = 2000
    seed: int = 0

    @property
    def pattern(self) -> str:
        return self.name.split(":")[0]

    @property
    def graph(self) -> str:
        return self.name.partition(":")[2].partition(":")[0]

    @property
    def num_tokens(self) -> int | None:
        """Of a prompt as plain text, about; None: as many as its entities give."""
        text = self.name.partition(":")[2].partition(":")[2]
        if not text:
            return None
        if not text.isdecimal() or int(text) < 1 or self.pattern == QUESTIONS:
            raise SetError(
                f"{self.name!r} is no workload: behind the graph stands a number of tokens, and "
                f"not for {QUESTIONS}"
            )
        return int(text)


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `answers` is empty where nobody knows what is right."""

    question: str
    entities: tuple[str, ...]
    paths: tuple[Path, ...]
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order they come, and the graph they are about."""

    spec: Spec
    requests: list[Request]
    store: GraphStore

    def digest(self) -> str:
        """Of the spec and of all that is sent."""
        text = json.dumps([asdict(self.spec), [asdict(each) for each in self.requests]])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Graphs:
    """The graphs of a folder of public sets, and the demo's own; each is read once."""

    def __init__(self, folder: File | None) -> None:
        self._folder = folder
        self._sets = cache(
            lambda: {data.name: data for data in load_folder(folder)} if folder else {}
        )
        self._stores = cache(hold)

    def open(self, name: str) -> tuple[GraphStore, DataSet | None]:
        """The graph, and the set if there is one. `metaqa` is the graph of `metaqa_1hop`, ...

        Raises SetError when there is no such graph.
        """
        if name == DEMO:
            return self._stores(tuple(load_triples())), None
        found = self._sets()
        data = found.get(name) or next(
            (each for key, each in found.items() if key.startswith(f"{name}_")), None
        )
        if data is None:
            known = ", ".join([DEMO, *found])
            raise SetError(f"there is no graph {name!r}: give --data, and one of {known}")
        return self._stores(data.triples), data


def make(spec: Spec, graphs: Graphs) -> Workload:
    """The workload. Raises SetError when its pattern or its graph does not exist."""
    store, data = graphs.open(spec.graph)
    if spec.pattern == QUESTIONS:
        requests = _ask_questions(spec, store, data)
    elif spec.pattern in KINDS:
        requests = _draw(spec, store)
    else:
        names = ", ".join([*KINDS, QUESTIONS])
        raise SetError(f"{spec.name!r} is no workload: use {names}, a colon and a graph")
    return Workload(spec, requests, store)


def fit(spec: Spec, graphs: Graphs, count: Callable[[Request], int]) -> Spec:
    """The spec with the number of entities that its `num_tokens` take, if it has any.

    count  tokens of a request
    """
    if spec.num_tokens is None:
        return spec
    few = make(replace(spec, num_requests=_NUM_FITTED), graphs).requests
    per_entity = sum(map(count, few)) / sum(len(request.entities) for request in few)
    return replace(spec, num_entities=max(1, round(spec.num_tokens / per_entity)))


def _draw(spec: Spec, store: GraphStore) -> list[Request]:
    names = store.names()
    pool = random.Random(spec.seed).sample(names, min(spec.pool, len(names)))
    retriever = Retriever(store, pruner="none")
    paths_of = cache(
        lambda entity: (
            retriever.retrieve(
                "", entities=[entity], num_hops=spec.num_hops, num_paths=spec.num_paths
            ).paths
        )
    )
    drawn = make_workload(
        spec.pattern,
        pool,
        spec.num_requests,
        num_entities=min(spec.num_entities, len(pool)),
        seed=spec.seed,
    )
    return [
        Request(
            f"What do {each.entities[0]} and {each.entities[-1]} have in common?",
            each.entities,
            tuple(path for entity in each.entities for path in paths_of(entity)),
        )
        for each in drawn
    ]


def _ask_questions(spec: Spec, store: GraphStore, data: DataSet | None) -> list[Request]:
    if data is None:
        asked = [(each.text, each.answers) for each in load_questions()]
    else:
        asked = [(each.text, each.answers) for each in asked_of(data, spec.num_requests)]
    order = random.Random(spec.seed)
    retriever = Retriever(store, pruner="words")
    requests: list[Request] = []
    while len(requests) < spec.num_requests:  # asked again in another order when there are few
        for text, answers in order.sample(asked, len(asked)):
            found = retriever.retrieve(text, num_hops=spec.num_hops, num_paths=spec.num_paths)
            requests.append(Request(text, tuple(found.entities), found.paths, answers))
    return requests[: spec.num_requests]


def entities_of(requests: Sequence[Request]) -> list[str]:
    """What the requests are about, each once."""
    return list(dict.fromkeys(name for request in requests for name in request.entities))
