# SPDX-License-Identifier: Apache-2.0
"""The sets that are asked, with the paths that retrieval finds for every question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path as File

from depcache.graph.retrieval import Retriever
from depcache.prompt.paths import Path
from eval.workloads.graphs import DEMO, Graphs
from eval.workloads.questions import texts_and_answers
from eval.workloads.unseen import UNSEEN, load_unseen

SETS = (DEMO, "metaqa_1hop", "metaqa_2hop", "metaqa_3hop", "2wiki")
UNSEEN_SETS = tuple(load_unseen())
"""Sets of relations that no model was trained on; they are in this repository, as the demo is."""

HOPS = {DEMO: 3} | {name: 3 for name in (*SETS, *UNSEEN_SETS) if name.endswith("_3hop")}
"""Edges of the longest path; 2 for the others."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question; `paths` in the stable order of the graph, as every system gets them.

    world  what it has in common with other questions; empty where it stands for itself
    """

    text: str
    answers: tuple[str, ...]
    paths: tuple[Path, ...]
    world: str = ""

    def is_reachable(self) -> bool:
        """Whether a path holds an answer: no reader of the paths can do better."""
        nodes = {node.casefold() for path in self.paths for node in path[::2]}
        return any(answer.casefold() in nodes for answer in self.answers)


def make_sets(
    folder: File | None, numbers: Mapping[str, int], *, pruner: str, max_paths: int
) -> dict[str, list[Asked]]:
    """Questions of the demo, of the unseen graphs and of public sets with their paths.

    folder   that holds the public sets; None leaves what is in this repository
    numbers  name of a set -> how many of its questions at most

    Raises SetError when the folder has no such set.
    """
    graphs = Graphs(folder)
    # The sets of MetaQA have one graph, which takes a second to index.
    open_once = cache(lambda store: Retriever(store, pruner=pruner))
    sets: dict[str, list[Asked]] = {}
    for name, number in numbers.items():
        if folder is None and name != DEMO and not name.startswith(UNSEEN):
            continue
        store, data = graphs.open(name)
        retriever, hops = open_once(store), HOPS.get(name, 2)
        sets[name] = [
            Asked(
                text,
                answers,
                retriever.retrieve(text, num_hops=hops, num_paths=max_paths).paths,
            )
            for text, answers in texts_and_answers(data, number)
        ]
    return sets
