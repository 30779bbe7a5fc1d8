# SPDX-License-Identifier: Apache-2.0
"""A workload as flat integers: all its prompts one behind the other, in one file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from depcache.cache.tree import KVTree
from depcache.plan.segments import SegmentTable
from depcache.prompt.forest import Forest
from depcache.prompt.prefix_tree import merge_sequences

TASK_TOKEN = 0


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """Prompts of system and context; what a task adds is up to the replay.

    system          (system_len,) int32, the same for all
    tokens          (num_tokens,) int32, the contexts in pre-order
    token_indptr    (num_requests + 1,) int64 into `tokens`
    lens, parents   (num_segments,) int32 of all contexts
    segment_indptr  (num_requests + 1,) int64 into these
    working_set     distinct context tokens of all requests
    """

    system: NDArray[np.int32]
    tokens: NDArray[np.int32]
    token_indptr: NDArray[np.int64]
    lens: NDArray[np.int32]
    parents: NDArray[np.int32]
    segment_indptr: NDArray[np.int64]
    working_set: int = 0

    @classmethod
    def make(cls, system: Sequence[int], contexts: Iterable[Sequence[list[int]]]) -> Prepared:
        """Merge the sequences of every context into trees (paper, Algorithm 1)."""
        tokens: list[NDArray[np.int32]] = []
        lens: list[NDArray[np.int32]] = []
        parents: list[NDArray[np.int32]] = []
        for sequences in contexts:
            merged = merge_sequences(sequences)
            for kept, values in zip((tokens, lens, parents), merged, strict=True):
                kept.append(np.array(values, np.int32))
        made = cls(
            system=np.array(system, np.int32),
            tokens=np.concatenate(tokens),
            token_indptr=np.cumsum([0, *map(len, tokens)]),
            lens=np.concatenate(lens),
            parents=np.concatenate(parents),
            segment_indptr=np.cumsum([0, *map(len, lens)]),
        )
        return replace(made, working_set=count_working_set(made.tables()))

    def tables(self) -> list[SegmentTable]:
        """One table a request, of layout `tree`, with a task of one token."""
        made: list[SegmentTable] = []
        for (start, stop), (first, last) in zip(
            pairwise(self.token_indptr.tolist()),
            pairwise(self.segment_indptr.tolist()),
            strict=True,
        ):
            prompt = np.concatenate((self.system, self.tokens[start:stop], [TASK_TOKEN]))
            forest = Forest.make(
                len(prompt), len(self.system), self.lens[first:last], self.parents[first:last]
            )
            made.append(SegmentTable.make(prompt.astype(np.int64), forest, "tree"))
        return made


def write_prepared(path: Path, prepared: Prepared) -> None:
    """Write a workload; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    with draft.open("wb") as file:
        np.savez(file, **{name: getattr(prepared, name) for name in Prepared.__slots__})
    draft.replace(path)


def read_prepared(path: Path) -> Prepared:
    """Read what `write_prepared` wrote."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in Prepared.__slots__}
    return Prepared(**{**arrays, "working_set": int(arrays["working_set"])})


def count_working_set(tables: Sequence[SegmentTable]) -> int:
    """Distinct context tokens: what a cache without bounds would hold in the end."""
    tree = KVTree()
    for table in tables:
        root = tree.root(None)
        ends = []
        for start, stop, parent in zip(table.starts, table.stops, table.parents, strict=True):
            above = root if parent < 0 else ends[parent]
            key = table.key[4 * start : 4 * stop]
            ends.append(tree.insert(above, key, np.zeros(stop - start, np.int64), 0).node)
    return tree.num_tokens - max((table.stops[0] for table in tables), default=0)
