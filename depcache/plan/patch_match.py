# SPDX-License-Identifier: Apache-2.0
"""Which recomputed tokens of a fused prompt an earlier request has left behind."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from depcache.cache.node import Node
from depcache.cache.radix import TOKEN_BYTES, common_prefix_tokens, first_token
from depcache.cache.tree import KVTree
from depcache.plan.patch_key import PatchKey
from depcache.plan.segments import SegmentTable


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """The patch of one row, as far as it is there.

    nodes      its resident nodes, parents before children
    num_found  recomputed tokens of the row that they hold, from its first on
    """

    of: PatchKey
    nodes: list[Node]
    num_found: int

    @property
    def found(self) -> np.ndarray:
        """(num_found,) int64 prompt indices of these."""
        return self.of.indices[: self.num_found]

    @property
    def wanted(self) -> np.ndarray:
        """(n,) int64 prompt indices of the others."""
        return self.of.indices[self.num_found :]


def match_patches(
    tree: KVTree, namespace: Hashable, table: SegmentTable, matched: Sequence[int]
) -> list[Patch]:
    """The patches that a request may read or write, also those of which nothing is there.

    matched  per segment the leading tokens that are on the device. What stands behind the first
             token that is not there is computed over other KV than a patch was, and has none

    Splits a node where a selection ends inside it.
    """
    found: list[Patch] = []
    for each in _usable(table, matched):
        root = tree.find_root(namespace, each.behind)
        nodes, num = ([], 0) if root is None else tree.walk(root, each.key)
        found.append(Patch(each, nodes, num))
    return found


def count_patched(
    tree: KVTree, namespace: Hashable, table: SegmentTable, matched: Sequence[int]
) -> int:
    """Recomputed tokens that `match_patches` would find. Changes nothing."""
    num = 0
    for each in _usable(table, matched):
        node: Node | None = tree.find_root(namespace, each.behind)
        at = 0
        while node is not None and at < len(each.key):
            node = node.children.get(first_token(each.key[at : at + TOKEN_BYTES]))
            if node is None or node.slots is None:
                break
            size = common_prefix_tokens(node.key, each.key[at:])
            at += size * TOKEN_BYTES
            if size < node.num_tokens:
                break
        num += at // TOKEN_BYTES
    return num


def _usable(table: SegmentTable, matched: Sequence[int]) -> list[PatchKey]:
    lens = np.array(table.stops, np.int64) - np.array(table.starts, np.int64)
    short = np.flatnonzero(np.array(matched, np.int64) < lens)
    num_whole = int(short[0]) if len(short) else table.num_segments
    return [each for each in table.patches if each.segments.stop <= num_whole]
