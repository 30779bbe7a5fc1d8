# SPDX-License-Identifier: Apache-2.0
"""Chunks of text as a source: each becomes a node of the tree, tokenized as requests have it.

alone     system -> chunk: a fused request that has the chunk in any place finds it
previous  system -> the chunk before it in its document -> chunk: another node, found by fused
          requests that say what the chunk stands behind (`depcache.render_chunks(behind=...)`)
similar   behind several chunks, each computed alone (FusionRAG, section 3.1): found likewise
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from depcache.errors import PromptError, shorten
from depcache.precompute.chunk_file import Chunk, find_predecessors
from depcache.precompute.neighbours import Neighbours
from depcache.precompute.pieces import Piece
from depcache.precompute.settings import QUESTION, digest_of
from depcache.precompute.source import Source, Wording
from depcache.prompt.chunks import CHUNK_SEPARATOR
from depcache.prompt.paths import Path
from depcache.prompt.recompute import Recompute
from depcache.prompt.render import (
    CHUNK_HEADING,
    DEFAULT_CHUNK_SYSTEM,
    render_chunk_rows,
    render_chunks,
)

_BEFORE: dict[str, Callable[[Sequence[Chunk]], Mapping[str, Chunk]]] = {
    "alone": lambda chunks: {},
    "previous": find_predecessors,
}


class ChunkSource(Source):
    """The chunks of a file.

    chunks  in the order in which they are computed, each with an id of its own
    behind  what a chunk is computed behind: `alone` is nothing but the system, `previous` the chunk
            before it in its document, where there is one; or its `Neighbours`
    system  the system message of later requests; None or "" for none
    fields  further fields of every request, `{"cache_salt": "tenant"}` for one

    Raises PromptError for another `behind`, and as `find_predecessors` for `previous`.
    """

    words = Wording(
        items="chunks",
        choice="the file of chunks",
        unknown="the file has no such chunk",
        empty="it has no text",
        fewer="about {num} chunks would fit: leave others out",
    )

    def __init__(
        self,
        chunks: Sequence[Chunk],
        *,
        behind: str | Neighbours = "alone",
        system: str | None = DEFAULT_CHUNK_SYSTEM,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        self._chunks = {chunk.id: chunk for chunk in chunks}
        self._recipe: dict[str, str] = {}
        self._before: Mapping[str, tuple[Chunk, ...]]
        if isinstance(behind, Neighbours):
            self._before, self._recipe = behind.of, {"similar": behind.recipe}
        elif behind in _BEFORE:
            self._before = {name: (chunk,) for name, chunk in _BEFORE[behind](chunks).items()}
        else:
            raise PromptError(
                f"{shorten(behind)} is nothing that chunks are computed behind: use one of "
                f"{', '.join(_BEFORE)}, or Neighbours"
            )
        self._behind = behind if isinstance(behind, str) else "similar"
        self._system = system
        self._fields = dict(fields or {})

    def names(self) -> list[str]:
        return list(self._chunks)

    def find(self, name: str) -> list[Path] | None:
        chunk = self._chunks.get(name)
        if chunk is None:
            return None
        before = self._before.get(name, ())
        return [(*(each.text for each in before), chunk.text)]

    def cut(self, name: str, paths: Sequence[Path], max_chars: float) -> list[Piece]:
        """One piece for each path, since a chunk is computed as a whole."""
        return [
            Piece(name, (path,), sum(len(CHUNK_SEPARATOR) + len(text) for text in path))
            for path in paths
        ]

    def make_request(self, paths: Sequence[Path]) -> dict[str, Any]:
        if self._behind == "similar" and any(len(path) > 1 for path in paths):
            # The server settles the rows of such a request, and that is all that is wanted of it.
            prompt = render_chunks(
                [path[-1] for path in paths],
                QUESTION,
                system=self._system,
                recompute=Recompute(0.0, is_pinned=True),
                behind=[path[:-1] or None for path in paths],
            )
        else:
            prompt = render_chunk_rows(paths, QUESTION, system=self._system)
        return {**self._fields, "messages": prompt.messages, **prompt.extra_body}

    def describe(self) -> dict[str, str]:
        return {
            "source": self._behind,
            "form": digest_of([CHUNK_HEADING, CHUNK_SEPARATOR]),
            "system": digest_of(self._system or ""),
            "fields": digest_of(self._fields),
            **self._recipe,
        }

    def stamp(self) -> str:
        rows: list[Any] = [asdict(chunk) for chunk in self._chunks.values()]
        if self._behind == "similar":
            rows += [[name, [each.text for each in some]] for name, some in self._before.items()]
        return digest_of(rows)
