# SPDX-License-Identifier: Apache-2.0
"""Where a precomputation gets its texts from: the contract of a source.

A source has items, told apart by name: the entities of a graph, the chunks of a file,
the tables of a catalog. Each item has
paths, tuples of texts, and every text of a path is computed behind those before it. A job asks for
the paths of an item when its turn comes, cuts them into pieces, and sends many pieces in a request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from depcache.precompute.pieces import Piece
from depcache.prompt.paths import Path


@dataclass(frozen=True, slots=True)
class Wording:
    """How a source is spoken of to a person.

    items    its items, in the plural: "entities". Keys of `--json` are made of it too
    choice   what decides which paths an item has: "the graph or the choice of paths"
    unknown  sentence about a name that is none of its items
    empty    sentence about an item without paths
    fewer    advice where not all fits; {num} stands for the number of items that would
    """

    items: str
    choice: str
    unknown: str
    empty: str
    fewer: str


class Source(ABC):
    """The texts of a precomputation, and the requests that have them computed."""

    words: Wording

    @abstractmethod
    def names(self) -> list[str]:
        """Every item, in the order in which they are best computed."""

    @abstractmethod
    def find(self, name: str) -> list[Path] | None:
        """The paths of one item, in a stable order; None where the source has no such item."""

    @abstractmethod
    def cut(self, name: str, paths: Sequence[Path], max_chars: float) -> list[Piece]:
        """The paths in pieces of at most `max_chars`, or of one path that is longer."""

    @abstractmethod
    def make_request(self, paths: Sequence[Path]) -> dict[str, Any]:
        """The body of a chat about these paths; PromptError when they make none."""

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """What decides the KV of a path, by name; texts and fields as digests only."""

    @abstractmethod
    def stamp(self) -> str:
        """A digest of what decides which paths the items have, the content as it is included."""

    def split(self, piece: Piece) -> list[Piece]:
        """A piece of several paths as two, or more; alone where it has to stay together."""
        middle = len(piece.paths) // 2
        halves = (piece.paths[:middle], piece.paths[middle:])
        return [part for half in halves for part in self.cut(piece.name, half, float("inf"))]
