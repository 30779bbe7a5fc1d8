# SPDX-License-Identifier: Apache-2.0
"""Match one dependency prompt against the tree and decide, per token, what to do.

The engine wants one row of KV slots per request, cached rows first. The plan therefore
permutes the prompt (DESIGN: "cached rows are the prefix, missed rows and task the extend"):

    row  0 ........... num_shared ........ + num_shifted ... num_hits ........ num_context ... n
         | shared hits   | shifted hits       | loaded hits  | missed, pre-order | tail        |
         | used in place | copied, keys moved | from host    | computed          | computed    |

The tail, what stands behind the context, keeps its order. Its beginning may be cached where nothing
of the context is missed or moved: shared then, behind the shared hits, and loaded, behind the
loaded ones. A tail on the device has its whole context there (`depcache.cache.roots`), so shared
rows of the tail come with no loaded ones of the context, and the order above holds.

Of a fused request (FusionRAG, section 4.3; CacheBlend) the selected tokens are computed again: they
stand among the missed, in prompt order, and their cached slots are not in the row, so that neither
prefill nor decode sees the stale copy. What an earlier request has computed for them is a patch
(`depcache.plan.patch_key`), and stands among the shared.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from depcache.cache.node import Node, Root, slots_of
from depcache.cache.tree import KVTree
from depcache.plan.match import match_segments
from depcache.plan.patch_match import Patch, match_patches
from depcache.plan.rows import RowKind, RowTable
from depcache.plan.segments import SegmentTable


@dataclass(frozen=True, slots=True, eq=False)
class ShiftedRows:
    """Hits whose keys must move: copy `slots` and rotate from `home` to `placed` (int64 each)."""

    slots: np.ndarray
    home: np.ndarray
    placed: np.ndarray

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True, eq=False)
class RequestPlan:
    """The decision for one request, valid while the tree's version is `version`.

    rows          what each row is
    shared_slots  (num_shared + num_tail_shared,) int64 slots of the shared rows
    shifted       the shifted rows
    loaded        nodes whose KV is in host memory, parents before children, each once; those of the
                  tail come last
    loaded_again  (n,) int64: the loaded rows begin with one for each token of `loaded` that is of
                  the context; then come n rows that read the slots of such rows too, by their
                  number among these
    num_loaded    the loaded rows of the context
    num_tail_shared, num_tail_loaded  tokens of the tail that are used in place, and loaded
    nodes         matched resident nodes, parents before children: lock them while it runs
    ends          per segment the deepest matched node, None where nothing matched
    matched       per segment the number of its leading tokens that matched
    tail_end      the deepest node of the tail; None where nothing of it is cached
    patches       of a fused request that keeps them: of each row that may have one
    num_locked    tokens of `nodes`, and of what they are hidden behind: what is kept from eviction
    """

    version: int
    rows: RowTable
    shared_slots: np.ndarray
    shifted: ShiftedRows
    loaded: list[Node] = field(repr=False)
    loaded_again: np.ndarray = field(repr=False)
    num_loaded: int
    nodes: list[Node] = field(repr=False)
    ends: list[Node | None] = field(repr=False)
    matched: list[int] = field(repr=False)
    num_context: int
    num_locked: int
    num_tail_shared: int = 0
    num_tail_loaded: int = 0
    tail_end: Node | None = field(default=None, repr=False)
    patches: list[Patch] = field(default_factory=list[Patch], repr=False)

    @property
    def order(self) -> np.ndarray:
        """(num_tokens,) int64: row -> index (pre-order) of the prompt."""
        return self.rows.index

    @property
    def num_shared(self) -> int:
        return len(self.shared_slots) - self.num_tail_shared

    @property
    def num_tail(self) -> int:
        """Tokens of the tail that are cached."""
        return self.num_tail_shared + self.num_tail_loaded

    @property
    def num_shifted(self) -> int:
        return len(self.shifted)

    @property
    def num_hits(self) -> int:
        """Tokens of the context that are cached."""
        return self.num_shared + len(self.shifted) + self.num_loaded

    @property
    def num_moved(self) -> int:
        """Tokens that need slots before their KV is there: shifted and loaded ones."""
        return len(self.shifted) + self.num_loaded + self.num_tail_loaded

    @property
    def num_missed(self) -> int:
        """Context tokens (the system included) that must be computed."""
        return self.num_context - self.num_hits

    @property
    def num_patched(self) -> int:
        """Those of the shared that an earlier request has computed again."""
        return sum(patch.num_found for patch in self.patches)

    @property
    def num_recomputed(self) -> int:
        """Those of the missed that were selected, whatever is cached."""
        return int((self.rows.kind == RowKind.RECOMPUTED).sum())


def plan_request(
    tree: KVTree,
    root: Node,
    table: SegmentTable,
    *,
    allow_shift: bool = True,
    allow_load: bool = True,
    tail_stop: int = 0,
) -> RequestPlan:
    """Match `table` below `root` and order its rows.

    allow_shift  False: a cached run at another position is computed again, not moved
    allow_load   False: what is not on the device is computed again, not loaded. Copies are loaded
                 from the fastest tier alone, and only where they were computed at the position
                 wanted
    tail_stop    index up to which the tail may come from the cache, below `num_tokens`: the engine
                 computes at least one token; 0: none of it does

    Splits a node where a match ends inside it; changes nothing else (hits are counted with
    `KVTree.touch` when the request runs). O(segments + matched nodes) Python, the rest numpy.
    """
    selected = table.selected
    match = match_segments(
        tree,
        root,
        table,
        allow_shift=allow_shift,
        # A loaded row becomes the tree's as a whole, whether it is selected or not.
        num_tiers=int(allow_load and (selected is None or table.stored is not None)),
        tail_stop=tail_stop,
    )
    nodes = match.nodes
    loaded, loaded_starts = match.loadable
    num_context = table.task_start
    sizes = np.array([node.num_tokens for node in nodes], np.int64)
    index = _expand(np.array(match.starts, np.int64), sizes)
    slots = slots_of(nodes)
    home = np.array([node.home for node in nodes], np.int64)
    wanted = np.array(match.placed, np.int64)

    loaded_sizes = np.array([node.num_tokens for node in loaded], np.int64)
    loaded_index = _expand(np.array(loaded_starts, np.int64), loaded_sizes)
    num_tail_shared = int((index >= num_context).sum())
    num_tail_loaded = int((loaded_index >= num_context).sum())
    loaded_again = np.empty(0, np.int64)
    if table.has_twins and loaded:
        loaded, rows, loaded_again = _load_once(loaded, loaded_sizes)
        loaded_index = loaded_index[rows]
    loaded_index = loaded_index[loaded_index < num_context]
    assert not (num_tail_shared and len(loaded_index))
    moved = np.repeat(home != wanted, sizes)
    in_place = ~moved
    if selected is not None:
        moved &= ~selected[index]
        in_place &= ~selected[index]
    if not in_place.all():
        shifted = ShiftedRows(
            slots=slots[moved],
            home=_expand(home, sizes)[moved],
            placed=table.positions[index[moved]],
        )
        shared_index, shifted_index, slots = index[in_place], index[moved], slots[in_place]
    else:
        empty = np.empty(0, np.int64)
        shifted = ShiftedRows(empty, empty, empty)
        shared_index, shifted_index = index, empty
    is_plain = not (table.has_twins or match.is_mixed)
    num_locked = int(sizes.sum()) if is_plain else _count_once(nodes)
    patches: list[Patch] = []
    if table.patches and isinstance(root, Root):
        patches = match_patches(tree, root.namespace, table, match.matched)
        patched = np.concatenate([shared_index[:0], *(patch.found for patch in patches)])
        assert selected is not None
        selected = selected.copy()
        selected[patched] = False
        of_patches = [node for patch in patches for node in patch.nodes]
        shared_index = np.concatenate((shared_index, patched))
        slots = np.concatenate((slots, slots_of(of_patches)))
        nodes = nodes + of_patches
        num_locked += len(patched)
    return RequestPlan(
        version=tree.version,
        rows=RowTable.make(
            shared_index[: len(shared_index) - num_tail_shared],
            shifted_index,
            loaded_index,
            num_context=num_context,
            num_tokens=table.num_tokens,
            selected=selected,
            stored=table.stored,
        ),
        shared_slots=slots,
        shifted=shifted,
        loaded=loaded,
        loaded_again=loaded_again,
        num_loaded=len(loaded_index),
        nodes=nodes,
        ends=match.ends,
        matched=match.matched,
        num_context=num_context,
        num_locked=num_locked,
        num_tail_shared=num_tail_shared,
        num_tail_loaded=num_tail_loaded,
        tail_end=match.tail_end,
        patches=patches,
    )


def _load_once(nodes: list[Node], sizes: np.ndarray) -> tuple[list[Node], np.ndarray, np.ndarray]:
    """Each of `nodes` once, and what its further occurrences read.

    sizes  (len(nodes),) int64, tokens of each

    Returns the nodes; the rows (sum of sizes,) int64 of `nodes` in the order of first occurrences,
    then further ones; and of the latter, by number among the former, the rows with the same KV.
    """
    first: dict[Node, int] = {}
    is_first = np.zeros(len(nodes), bool)
    at = 0
    source = np.empty(len(nodes), np.int64)
    for i, node in enumerate(nodes):
        if node not in first:
            first[node] = at
            is_first[i] = True
            at += node.num_tokens
        source[i] = first[node]
    starts = np.cumsum(sizes) - sizes
    rows = np.concatenate(
        (_expand(starts[is_first], sizes[is_first]), _expand(starts[~is_first], sizes[~is_first]))
    )
    return list(first), rows, _expand(source[~is_first], sizes[~is_first])


def _count_once(nodes: list[Node]) -> int:
    """Tokens of these nodes and of all above them, which a lock keeps as well."""
    held: dict[Node, None] = {}
    for node in nodes:
        above: Node | None = node
        while above is not None and above not in held:
            held[above] = None
            above = above.parent
    return sum(node.num_tokens for node in held)


def _expand(firsts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Concatenate the ranges [first, first + size): int64 (sum of sizes,)."""
    stops = np.cumsum(sizes)
    total = int(stops[-1]) if len(stops) else 0
    return np.arange(total) + np.repeat(firsts - (stops - sizes), sizes)
