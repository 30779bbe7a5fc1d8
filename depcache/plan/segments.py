# SPDX-License-Identifier: Apache-2.0
"""A prompt prepared for matching: its segments as plain lists and its tokens as raw bytes.

Built once per request. The system is segment 0 (when it has tokens) and the parent of every
tree, so matching sees one forest of segments from the root of the namespace down.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from depcache.cache.node import TOKEN_BYTES, to_key
from depcache.prompt.forest import Forest
from depcache.prompt.layout import Layout, token_positions


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTable:
    """Segments of system and context in pre-order, S in number.

    num_tokens   tokens of the whole prompt
    task_start   index of the first task token
    tokens       token ids of the prompt, as Python ints (dict keys)
    key          the same as raw int32 bytes
    starts, stops, parents   (S,) lists; parent -1 is the root of the namespace
    placed       (S,) list: position of the segment's first token in this prompt
    positions    (num_tokens,) int64: position of every token, by index
    """

    num_tokens: int
    task_start: int
    tokens: list[int]
    key: bytes
    starts: list[int]
    stops: list[int]
    parents: list[int]
    placed: list[int]
    positions: np.ndarray

    @classmethod
    def make(cls, tokens: np.ndarray, forest: Forest, layout: Layout) -> SegmentTable:
        """Prepare `tokens` (num_tokens,) int64 in pre-order, cut as `forest` says."""
        structure, positions = forest.structure, token_positions(forest, layout)
        if forest.system_len:
            starts, lens = structure.node_starts, structure.node_lens
            parents = structure.node_parents
        else:
            starts, lens, parents = structure.starts, structure.lens, structure.parents
        return cls(
            num_tokens=forest.num_tokens,
            task_start=forest.task_start,
            tokens=tokens.tolist(),
            key=to_key(tokens),
            starts=starts.tolist(),
            stops=(starts + lens).tolist(),
            parents=parents.tolist(),
            placed=positions[starts].tolist(),
            positions=positions,
        )

    @classmethod
    def of_plain_prompt(cls, tokens: np.ndarray, position: int = 0) -> SegmentTable:
        """A prompt without dependencies: one segment, `tokens` (num_tokens,) in order.

        position  of the first token
        """
        num_tokens = len(tokens)
        return cls(
            num_tokens=num_tokens,
            task_start=num_tokens,
            tokens=tokens.tolist(),
            key=to_key(tokens),
            starts=[0],
            stops=[num_tokens],
            parents=[-1],
            placed=[position],
            positions=np.arange(position, position + num_tokens),
        )

    @property
    def num_segments(self) -> int:
        return len(self.starts)

    def path(self, segment: int) -> bytes:
        """Raw int32 tokens from the root of the namespace to the end of a segment."""
        parts: list[bytes] = []
        while segment >= 0:
            start, stop = self.starts[segment], self.stops[segment]
            parts.append(self.key[start * TOKEN_BYTES : stop * TOKEN_BYTES])
            segment = self.parents[segment]
        return b"".join(reversed(parts))
