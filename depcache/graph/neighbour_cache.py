# SPDX-License-Identifier: Apache-2.0
"""Neighbourhoods that a database has told before, for as long as its graph has the same version."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

from cachetools import LRUCache

from depcache.graph.base import Neighbourhood

CACHE_EDGES = 200_000
"""Edges kept of one graph, those least recently asked for going first; about 200 bytes each."""


class NeighbourCache:
    """Safe to share by threads. Holds only what does not depend on what else was asked.

    max_edges  edges kept, every entity counting as one more; 0 keeps nothing
    """

    def __init__(self, max_edges: int = CACHE_EDGES) -> None:
        self._version = -1
        self._lock = Lock()
        # A name leads to all its edges, a name and a bound to a sample of so many.
        self._known: LRUCache[str | tuple[str, int], Neighbourhood] = LRUCache(
            max_edges, getsizeof=lambda near: len(near.edges) + 1
        )

    def find(
        self, version: int, names: Iterable[str], max_edges: int | None
    ) -> dict[str, Neighbourhood]:
        """What is known of `names`, as `GraphStore.neighbours` would answer at that version."""
        found: dict[str, Neighbourhood] = {}
        with self._lock:
            if version != self._version:
                self._known.clear()
                self._version = version
            for name in names:
                near = self._known.get(name)
                if max_edges is not None and (near is None or near.num_edges > max_edges):
                    near = self._known.get((name, max_edges))
                if near is not None:
                    found[name] = near
        return found

    def keep(self, version: int, found: dict[str, Neighbourhood], max_edges: int | None) -> None:
        """Remember answers; nothing, where the graph has moved on from `version`.

        A write between reading the version and the edges makes the edges newer than `version`,
        never older, and the next question, which reads the version again, finds them gone.
        """
        with self._lock:
            if version != self._version:
                return
            for name, near in found.items():
                if len(near.edges) < self._known.maxsize:
                    self._known[(name, max_edges or 0) if near.is_sampled else name] = near

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._known.clear()

    @property
    def num_edges(self) -> int:
        """What is held, in the measure of `max_edges`."""
        return int(self._known.currsize)
