# SPDX-License-Identifier: Apache-2.0
"""Cut the trees of entities so that they fit into requests, and fill requests with them.

Trees of different entities do not see each other, so several share a request. A tree too large
for one is cut into runs of its sorted paths: what two runs share is computed by the first.
The chunks of a file are pieces of one path each (`depcache.precompute.chunk_source`).

Sizes are in characters of the tree, every element counted once for each way that leads to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from depcache.prompt.paths import Path
from depcache.prompt.template import Template


@dataclass(frozen=True, slots=True)
class Piece:
    """Paths of one item that travel together.

    num_chars  of their tree
    group      pieces of different groups share no request: one would change the KV of the other
    """

    name: str
    paths: tuple[Path, ...]
    num_chars: int
    group: str = ""


def make_pieces(
    entity: str, paths: Iterable[Path], template: Template, max_chars: float
) -> list[Piece]:
    """The lines of `paths` in pieces of at most `max_chars`, or of one line that is longer."""
    pieces: list[Piece] = []
    lines: list[Path] = []
    seen: set[Path] = set()
    num_chars = 0
    for line in sorted(template.lines(paths)):
        added = _count_new(line, template, seen)
        if lines and num_chars + added > max_chars:
            pieces.append(Piece(entity, tuple(lines), num_chars))
            lines, seen, num_chars = [], set(), 0
            added = _count_new(line, template, seen)
        lines.append(line)
        seen.update(line[:stop] for stop in range(1, len(line) + 1))
        num_chars += added
    if lines:
        pieces.append(Piece(entity, tuple(lines), num_chars))
    return pieces


def fill_requests(pieces: Iterable[Piece], max_chars: float) -> Iterator[list[Piece]]:
    """Pieces in their order, together as long as they are within `max_chars`, and lazily so.

    Only pieces of one group are together.
    """
    batch: list[Piece] = []
    num_chars = 0
    for piece in pieces:
        is_full = num_chars + piece.num_chars > max_chars
        if batch and (is_full or piece.group != batch[0].group):
            yield batch
            batch, num_chars = [], 0
        batch.append(piece)
        num_chars += piece.num_chars
    if batch:
        yield batch


def paths_of(batch: Sequence[Piece]) -> list[Path]:
    """The paths of a request."""
    return [path for piece in batch for path in piece.paths]


def _count_new(line: Path, template: Template, seen: set[Path]) -> int:
    """Characters of the elements of `line` behind its longest beginning in `seen`."""
    known = max((stop for stop in range(1, len(line) + 1) if line[:stop] in seen), default=0)
    return sum(map(len, template.pieces(line)[known:]))
