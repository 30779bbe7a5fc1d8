# SPDX-License-Identifier: Apache-2.0
"""The entities of a graph as a source: each has the paths that a question about it may retrieve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from depcache.errors import PromptError
from depcache.graph.base import GraphStore
from depcache.precompute.pieces import Piece, make_pieces
from depcache.precompute.settings import PrecomputeSettings
from depcache.precompute.source import Source, Wording
from depcache.prompt.paths import Path
from depcache.prompt.template import get_template


class GraphSource(Source):
    """The trees of a graph's entities.

    settings  what later requests look like; None is what `depcache ask` sends
    """

    words = Wording(
        items="entities",
        choice="the graph or the choice of paths",
        unknown="the graph has no such entity",
        empty="there is no path around it",
        fewer="take about {num} entities (--entities top:N) or fewer --paths",
    )

    def __init__(self, store: GraphStore, settings: PrecomputeSettings | None = None) -> None:
        self.store = store
        self.settings = settings or PrecomputeSettings()
        self._template = get_template(self.settings.template)

    def names(self) -> list[str]:
        return self.store.names_by_degree()

    def find(self, name: str) -> list[Path] | None:
        try:
            return self.settings.find_paths(self.store, name)
        except PromptError:
            return None  # no name at all, and so no entity

    def cut(self, name: str, paths: Sequence[Path], max_chars: float) -> list[Piece]:
        return make_pieces(name, paths, self._template, max_chars)

    def make_request(self, paths: Sequence[Path]) -> dict[str, Any]:
        return self.settings.make_request(paths)

    def describe(self) -> dict[str, str]:
        return self.settings.describe()

    def stamp(self) -> str:
        return self.settings.choice_of(self.store)
