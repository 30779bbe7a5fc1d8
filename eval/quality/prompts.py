# SPDX-License-Identifier: Apache-2.0
"""The sets that are asked, with the paths that retrieval finds for every question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path as File

from depcache.demo.sample import load_questions, load_triples
from depcache.graph.retrieval import Retriever
from depcache.prompt.paths import Path
from eval.graphs import hold
from eval.quality.split import asked_of
from eval.sets import SetError, load_folder

SETS = ("demo", "metaqa_1hop", "metaqa_2hop", "metaqa_3hop", "2wiki")
HOPS = {"demo": 3, "metaqa_3hop": 3}
"""Edges of the longest path; 2 for the others."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question; `paths` in the stable order of the graph, as every system gets them."""

    text: str
    answers: tuple[str, ...]
    paths: tuple[Path, ...]

    def is_reachable(self) -> bool:
        """Whether a path holds an answer: no reader of the paths can do better."""
        nodes = {node.casefold() for path in self.paths for node in path[::2]}
        return any(answer.casefold() in nodes for answer in self.answers)


def make_sets(
    folder: File | None, numbers: Mapping[str, int], *, pruner: str, max_paths: int
) -> dict[str, list[Asked]]:
    """Questions of the demo and of public sets with their paths.

    folder   that holds the public sets; None leaves the demo's own
    numbers  name of a set -> how many of its questions at most

    Raises SetError when the folder has no such set.
    """
    found = {data.name: data for data in load_folder(folder)} if folder else {}
    # The sets of MetaQA have one graph, which takes a second to index.
    open_once = cache(lambda triples: Retriever(hold(triples), pruner=pruner))
    sets: dict[str, list[Asked]] = {}
    for name, number in numbers.items():
        if name == "demo":
            triples = tuple(load_triples())
            questions = [(each.text, each.answers) for each in load_questions()[:number]]
        elif name in found:
            triples = found[name].triples
            questions = [(each.text, each.answers) for each in asked_of(found[name], number)]
        elif folder is None:
            continue
        else:
            raise SetError(f"{str(folder)!r} holds no {name!r}: it has {', '.join(found)}")
        retriever, hops = open_once(triples), HOPS.get(name, 2)
        sets[name] = [
            Asked(
                text,
                answers,
                retriever.retrieve(text, num_hops=hops, num_paths=max_paths).paths,
            )
            for text, answers in questions
        ]
    return sets
