# SPDX-License-Identifier: Apache-2.0
"""What a plain prefix cache would have computed for the prompts that DepCache served: an estimate.

The prompt of a plain server is flat: system, every fact in full, task. Its tokens are put together
from the ways from root to leaf, in the order of the trees. The newline between two facts is left
out, and so is a fact that is the beginning of another, so the flat prompt is rather too short. The
plain cache is a radix tree of the same room that gives up the least recently used, as SGLang's own.

Both caches begin empty. What DepCache reused from before counts here as computed, because a plain
cache would have had something from before as well, and nobody knows what.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from depcache.cache import KVTree, Node
from depcache.cache.radix import TOKEN_BYTES
from depcache.plan import SegmentTable, match_segments
from depcache.prompt.forest import Forest
from depcache.prompt.layout import Layout

MAX_TREE_TOKENS = 1_000_000
"""Most tokens that each of the two trees remembers, about 15 bytes each."""

MAX_FLAT_TOKENS = 262_144
"""Longest flat prompt that is compared: a deep tree with many leaves is flat without bound."""


@dataclass(slots=True)
class Totals:
    """Tokens of the prompts that were compared, and how many prompts.

    tree_tokens, flat_tokens  of the prompts as DepCache and as a plain server would read them
    computed, plain_computed  of these, not found in the cache
    """

    prompts: int = 0
    tree_tokens: int = 0
    flat_tokens: int = 0
    computed: int = 0
    plain_computed: int = 0


class PrefixEstimate:
    """Compares prompt by prompt. Not thread-safe.

    capacity_tokens  room of the server's KV pool
    """

    def __init__(self, capacity_tokens: int = MAX_TREE_TOKENS) -> None:
        self.totals = Totals()
        self._room = min(capacity_tokens, MAX_TREE_TOKENS)
        self._seen, self._plain = KVTree(), KVTree()

    def add(
        self, tokens: np.ndarray, forest: Forest, layout: Layout, tenant: str | None, reused: int
    ) -> Totals | None:
        """Count one prompt; returns its own figures, None for one that cannot be compared.

        tokens  (num_tokens,) in pre-order
        reused  tokens that DepCache did not compute
        """
        table = SegmentTable.make(tokens, forest, layout)
        flat = flatten(table, forest)
        if flat is None:
            return None
        num_tokens = forest.num_tokens
        own = Totals(
            prompts=1,
            tree_tokens=num_tokens,
            flat_tokens=len(flat) // TOKEN_BYTES,
            computed=num_tokens - min(reused, self._see(table, tenant, layout)),
        )
        own.plain_computed = own.flat_tokens - self._find(flat, tenant)
        for name in Totals.__slots__:
            setattr(self.totals, name, getattr(self.totals, name) + getattr(own, name))
        return own

    def _see(self, table: SegmentTable, tenant: str | None, layout: Layout) -> int:
        """Tokens of the prompt that earlier ones had; from now on they have them all."""
        tree, root = self._seen, self._seen.root((tenant, layout))
        found = match_segments(tree, root, table)
        _use(tree, found.nodes)
        ends: list[Node] = []
        for segment, (start, stop, parent, placed) in enumerate(
            zip(table.starts, table.stops, table.parents, table.placed, strict=True)
        ):
            above = table.root_of(tree, root, segment) if parent < 0 else ends[parent]
            key = table.key[start * TOKEN_BYTES : stop * TOKEN_BYTES]
            ends.append(tree.insert(above, key, np.zeros(stop - start, np.int64), placed).node)
        num_seen = sum(found.matched)
        if table.tail_key:
            # A digest of the context is enough for an estimate, and far shorter.
            behind = (tenant, layout, blake2b(table.tail_key, digest_size=16).digest())
            num_tail = self._find_in(tree, behind, table.key[table.task_start * TOKEN_BYTES :])
            num_seen += num_tail if num_seen == table.task_start else 0
        self._trim(tree)
        return num_seen

    def _find(self, flat: bytes, tenant: str | None) -> int:
        """Leading tokens of a flat prompt that are cached; from now on all are."""
        found = self._find_in(self._plain, tenant, flat)
        self._trim(self._plain)
        return found

    def _find_in(self, tree: KVTree, namespace: Hashable, key: bytes) -> int:
        root, num_tokens = tree.root(namespace), len(key) // TOKEN_BYTES
        nodes, found = tree.walk(root, key)
        _use(tree, nodes)
        tree.insert(root, key, np.zeros(num_tokens, np.int64), 0)
        return min(found, num_tokens - 1)  # the last token is always computed

    def _trim(self, tree: KVTree) -> None:
        if tree.num_tokens > self._room:
            tree.tiers.evict(tree, tree.num_tokens - self._room)


def _use(tree: KVTree, nodes: list[Node]) -> None:
    tree.lock(nodes)
    tree.touch(nodes)
    tree.unlock(nodes)


def flatten(table: SegmentTable, forest: Forest) -> bytes | None:
    """The key of the prompt as plain text; None where it is longer than `MAX_FLAT_TOKENS`."""
    is_leaf = np.ones(forest.num_segments, bool)
    is_leaf[forest.parents[forest.parents >= 0]] = False
    leaves = np.flatnonzero(is_leaf)
    num_flat = int((forest.depths + forest.lens)[leaves].sum())
    if num_flat + forest.system_len + forest.task_len > MAX_FLAT_TOKENS:
        return None
    system = table.key[: forest.system_len * TOKEN_BYTES]
    first = 1 if forest.system_len else 0
    facts = [table.path(leaf + first).removeprefix(system) for leaf in leaves.tolist()]
    return b"".join([system, *facts, table.key[forest.task_start * TOKEN_BYTES :]])
