# SPDX-License-Identifier: Apache-2.0
"""What a fused request computes again, and behind what: the identity of a patch.

A recomputed token sees everything before it, so its KV is a function of the prompt up to itself: of
the tokens, of how they are cut into rows, of what these stand behind, and of which of them were
computed again. A *patch* keeps the recomputed tokens of one row as nodes of the tree, in place,
because what comes before them decides where they stand:

    root   PATCH_MARK and a digest: system, rows and selection before this row, and the row's tokens
    key    the offsets of the recomputed tokens within the row, ascending, in place of token ids

A way down is a list of offsets, so two selections in a row share what they begin with. The digest
has 256 bits: with the tokens themselves, each row would keep the whole prompt before it once more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from depcache.cache.node import PATCH_MARK
from depcache.cache.radix import TOKEN_BYTES, to_key
from depcache.prompt.behind import Behind, ids_of
from depcache.prompt.forest import Forest, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class PatchKey:
    """Where the patch of one row is found, and what it holds.

    segments  those of the row, as numbered in the `SegmentTable`
    behind    `Root.behind` of it
    indices   (K,) int64 prompt indices of its recomputed tokens, ascending, at least one
    key       their offsets within the row, raw int32
    """

    segments: range
    behind: bytes = field(repr=False)
    indices: np.ndarray = field(repr=False)
    key: bytes = field(repr=False)


def make_patch_keys(
    key: bytes, forest: Forest, selected: IntArray, behind: Behind | None = None
) -> list[PatchKey]:
    """The patches of a fused prompt, one for each row with recomputed tokens, in order.

    key       raw int32 tokens of the prompt
    selected  (K,) int64 indices of the recomputed tokens, ascending
    behind    what its rows stand behind

    O(context), and a few calls for each row.
    """
    first_segment = 1 if forest.system_len else 0  # the system is a segment of the table
    roots = [*forest.structure.roots.tolist(), forest.num_segments]
    starts = [*forest.structure.tree_starts.tolist(), forest.task_start]
    cuts = np.searchsorted(selected, starts).tolist()
    digest = blake2b(digest_size=32)
    digest.update(_ints(forest.system_len) + key[: forest.system_len * TOKEN_BYTES])
    found: list[PatchKey] = []
    for row, start in enumerate(starts[:-1]):
        first, stop = roots[row], roots[row + 1]
        chunks = [] if behind is None else ids_of(behind[row])
        # Each length comes before what has it, so no two prompts are written alike.
        digest.update(_ints(stop - first, len(chunks)))
        for ids in chunks:
            digest.update(_ints(len(ids)) + to_key(np.array(ids, np.int64)))
        digest.update(to_key(forest.lens[first:stop]))
        digest.update(to_key(np.maximum(forest.parents[first:stop] - first, -1)))
        digest.update(key[start * TOKEN_BYTES : starts[row + 1] * TOKEN_BYTES])
        indices = selected[cuts[row] : cuts[row + 1]]
        offsets = to_key(indices - start)
        if len(indices):
            found.append(
                PatchKey(
                    range(first + first_segment, stop + first_segment),
                    PATCH_MARK + digest.digest(),
                    indices,
                    offsets,
                )
            )
        digest.update(_ints(len(indices)) + offsets)
    return found


def _ints(*values: int) -> bytes:
    return to_key(np.array(values, np.int64))
