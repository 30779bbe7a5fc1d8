# SPDX-License-Identifier: Apache-2.0
"""Entities drawn from a graph, and their paths: the same in every request, as in the paper."""

from __future__ import annotations

import random

from depcache.graph.base import GraphStore
from depcache.graph.retrieval import Retriever
from depcache.prompt.paths import Path

NUM_HOPS = 2
NUM_PATHS = 30


class EntityPaths:
    """Finds the paths of each entity once.

    num_hops   of a path, at most
    num_paths  of an entity, at most
    """

    def __init__(
        self, store: GraphStore, *, num_hops: int = NUM_HOPS, num_paths: int = NUM_PATHS
    ) -> None:
        # Any other pruner looks at the question, which would give an entity other paths each time.
        self._retriever = Retriever(store, pruner="none", max_hops=num_hops, max_paths=num_paths)
        self._found: dict[str, tuple[Path, ...]] = {}

    def of(self, entity: str) -> tuple[Path, ...]:
        """Returns the paths of `entity` in the stable order of the graph; () for one without."""
        if entity not in self._found:
            self._found[entity] = tuple(self._retriever.retrieve("", entities=[entity]).paths)
        return self._found[entity]


def draw_pool(store: GraphStore, size: int, seed: int) -> list[str]:
    """Returns `size` entities of the graph, the same ones in the same order for the same seed."""
    return random.Random(seed).sample(store.names(), size)
