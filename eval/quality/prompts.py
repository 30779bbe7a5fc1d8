# SPDX-License-Identifier: Apache-2.0
"""The sets that are asked, with the paths that retrieval finds for every question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as File

from depcache.demo.sample import load_questions, load_triples
from depcache.graph.retrieval import Retriever
from depcache.prompt.paths import Path
from eval.quality.split import asked_of
from eval.quality.teach import make_graph
from eval.sets import DataSet, SetError, load_folder

SETS = ("demo", "metaqa_1hop", "metaqa_2hop", "metaqa_3hop", "2wiki")
HOPS = {"demo": 3, "metaqa_3hop": 3}
"""Edges of the longest path; 2 for the others."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question.

    paths      in the stable order of the graph, as every system gets them
    reordered  the same by relevance: what comes before in a warm cache, at other places
    """

    text: str
    answers: tuple[str, ...]
    paths: tuple[Path, ...]
    reordered: tuple[Path, ...]

    def is_reachable(self) -> bool:
        """Whether a path holds an answer: no reader of the paths can do better."""
        nodes = {node.casefold() for path in self.paths for node in path[::2]}
        return any(answer.casefold() in nodes for answer in self.answers)


def make_sets(
    folder: File | None, names: Sequence[str], number: int, *, pruner: str, max_paths: int
) -> dict[str, list[Asked]]:
    """Up to `number` questions of each set.

    folder  that holds the public sets; None leaves the demo's own
    """
    found = {data.name: data for data in load_folder(folder)} if folder else {}
    sets: dict[str, list[Asked]] = {}
    retrievers: dict[int, Retriever] = {}
    for name in names:
        if name == "demo":
            sample = load_questions()[:number]
            questions = [(question.text, question.answers) for question in sample]
            retriever = Retriever(make_graph(load_triples()), pruner="words")
        elif name in found:
            data = found[name]
            questions = [(q.text, q.answers) for q in asked_of(data, number)]
            # The sets of MetaQA have one graph, which takes a second to index.
            key = hash(data.triples)
            retriever = retrievers.setdefault(key, _open(data, pruner))
        elif folder is None:
            continue
        else:
            raise SetError(f"{str(folder)!r} holds no {name!r}: it has {', '.join(found)}")
        hops = HOPS.get(name, 2)
        sets[name] = [
            Asked(
                text,
                answers,
                retriever.retrieve(text, num_hops=hops, num_paths=max_paths).paths,
                retriever.retrieve(
                    text, num_hops=hops, num_paths=max_paths, by_relevance=True
                ).paths,
            )
            for text, answers in questions
        ]
    return sets


def _open(data: DataSet, pruner: str) -> Retriever:
    return Retriever(make_graph(data.triples), pruner=pruner)
