# SPDX-License-Identifier: Apache-2.0
"""Chunks of text as a source: each becomes a node of the tree behind the system.

A chunk is one text, tokenized as `depcache.render_chunks` does, so a fused request that has it in
any place finds it. Of a chunk behind the one before it in its document (source `previous`) the path
has two texts; what is computed behind nothing (source `alone`) is another node of the tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from depcache.precompute.chunk_file import Chunk
from depcache.precompute.pieces import Piece
from depcache.precompute.settings import QUESTION, digest_of
from depcache.precompute.source import Source, Wording
from depcache.prompt.chunks import CHUNK_SEPARATOR
from depcache.prompt.paths import Path
from depcache.prompt.render import CHUNK_HEADING, DEFAULT_CHUNK_SYSTEM, render_chunk_rows


class ChunkSource(Source):
    """The chunks of a file, of other chunks not a token in view.

    chunks  in the order in which they are computed, each with an id of its own
    system  the system message of later requests; None or "" for none
    fields  further fields of every request, `{"cache_salt": "tenant"}` for one
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
        system: str | None = DEFAULT_CHUNK_SYSTEM,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        self._chunks = {chunk.id: chunk for chunk in chunks}
        self._system = system
        self._fields = dict(fields or {})

    def names(self) -> list[str]:
        return list(self._chunks)

    def find(self, name: str) -> list[Path] | None:
        chunk = self._chunks.get(name)
        return None if chunk is None else [(chunk.text,)]

    def cut(self, name: str, paths: Sequence[Path], max_chars: float) -> list[Piece]:
        """One piece for each path, since a chunk is computed as a whole."""
        return [
            Piece(name, (path,), sum(len(CHUNK_SEPARATOR) + len(text) for text in path))
            for path in paths
        ]

    def make_request(self, paths: Sequence[Path]) -> dict[str, Any]:
        prompt = render_chunk_rows(paths, QUESTION, system=self._system)
        return {**self._fields, "messages": prompt.messages, **prompt.extra_body}

    def describe(self) -> dict[str, str]:
        return {
            "form": digest_of([CHUNK_HEADING, CHUNK_SEPARATOR]),
            "system": digest_of(self._system or ""),
            "fields": digest_of(self._fields),
        }

    def stamp(self) -> str:
        return digest_of([asdict(chunk) for chunk in self._chunks.values()])
