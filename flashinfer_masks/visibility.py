# SPDX-License-Identifier: Apache-2.0
"""Who sees whom: the segments of one prompt, and the part of them that one step computes.

Whatever is derived from lengths and parents is derived here, once per request: matching,
positions, masks and plans all read these arrays.

Two numberings meet here. An *index* counts tokens in pre-order, [system | context | task]; a
*row* counts the request's rows in the KV cache, hits first. `order[row] == index`.

    row    0 ........ num_prefix ............................ num_rows ..... num_tokens ...
           | in the KV already | computed now, in this order  | later chunks |
           | hits, any order,  | system | context   | task,   |
           | earlier chunks    | misses | misses    | output  |
    query                      0 .... context_start tail_start num_new
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from flashinfer_masks.joins import MAX_JOINED_TOKENS, Joins, StructureError, close_joins
from flashinfer_masks.ragged import expand_ranges


@dataclass(frozen=True, eq=False)
class Structure:
    """The segments of one prompt as plain arrays. Build it once per request with `make`.

    A token sees its ancestors and itself (dependency attention, DepCache paper, section 3.1);
    the system is an ancestor of all. A tree may be *joined* to segments of earlier trees, which
    all of its tokens see too (TableCache: a table and those that it refers to). Task, generated
    and *recomputed* tokens (FusionRAG, CacheBlend) see everything before them:

        visible(i, j) = j <= i and (i < ends[j] or sees_all[i] or segment(j) in joined[tree(i)])

    num_tokens     tokens of the whole prompt, which may end with its last segment
    system_len     tokens of the system, may be 0
    lens           (S,) int64, tokens of each segment, in pre-order
    parents        (S,) int64, parent segment; -1 is the root of a tree
    joins          (root, seen segments) of each tree that is joined to earlier ones: ascending,
                   and none that follows from another
    recomputed     (R,) int64, ascending indices of context tokens that see everything before them

    Derived:

    starts         (S,) int64, index of each segment's first token
    subtree_stops  (S,) int64, first index past each segment's last descendant
    ends           (num_tokens,) int64, first index that is no descendant of the token;
                   num_tokens for system and task
    sees_all       (num_tokens,) bool, the task and what is recomputed
    parent_tokens  (num_tokens,) int64, index of the token each token follows and sees as its
                   neighbour; -1 for index 0, for the first token of a joined tree and, without
                   a system, of any tree
    roots          (T,) int64, each tree's first segment
    trees          (S,) int64, number of each segment's tree
    tree_starts    (T,) int64, index of each tree's first token
    joined         int64, the segments that tree t is joined to, with all that these see, are
    joined_indptr  joined[joined_indptr[t] : joined_indptr[t + 1]], ascending; int64 (T + 1,)
    joined_lens    (T,) int64, their tokens

    The nodes are the segments with the system before them, as node 0 and parent of the roots:

    node_starts, node_lens, node_parents   (S + 1,) int64; the parent of the system is -1
    node_levels    (S + 1,) int64, number of nodes above
    node_depths    (S + 1,) int64, tokens on the longest way down to the node; it sits behind them
    node_above     (S + 1,) int64, number of tokens seen from above the node: its depth, but
                   where a tree is joined to several

    All arrays are read-only.
    """

    num_tokens: int
    system_len: int
    lens: np.ndarray
    parents: np.ndarray
    starts: np.ndarray
    subtree_stops: np.ndarray
    joins: Joins
    recomputed: np.ndarray
    joined: np.ndarray = field(repr=False)
    joined_indptr: np.ndarray = field(repr=False)
    tree_starts: np.ndarray = field(repr=False)
    node_starts: np.ndarray = field(repr=False)
    node_lens: np.ndarray = field(repr=False)
    node_parents: np.ndarray = field(repr=False)
    node_levels: np.ndarray = field(repr=False)
    node_depths: np.ndarray = field(repr=False)
    node_above: np.ndarray = field(repr=False)

    @classmethod
    def make(
        cls,
        num_tokens: int,
        system_len: int,
        lens: np.ndarray,
        parents: np.ndarray,
        joins: Mapping[int, Sequence[int]] | None = None,
    ) -> Structure:
        """Derives the arrays. O(S + joined segments) Python, the rest numpy.

        num_tokens, system_len, lens, parents  as above, already validated; S may be 0
        joins  root of a tree -> segments of earlier trees that it sees

        Raises StructureError when the segments are not in pre-order, or joins are not as above.
        """
        lens, parents = np.array(lens, np.int64), np.array(parents, np.int64)
        node_lens = np.concatenate(([system_len], lens))
        node_stops = np.cumsum(node_lens)
        node_starts = node_stops - node_lens
        node_parents = np.concatenate(([-1], parents + 1))
        task_start = int(node_stops[-1])
        assert len(lens) == len(parents)
        assert 0 <= system_len
        assert task_start <= num_tokens
        assert (lens >= 1).all()
        assert ((parents >= -1) & (parents < np.arange(len(parents)))).all()

        seen, joined = close_joins(parents, joins or {})
        levels, depths, stops = _walk(
            node_parents.tolist(), node_lens.tolist(), node_starts.tolist(), task_start, dict(seen)
        )
        roots = np.flatnonzero(parents < 0)
        counts = (
            [len(joined.get(root, ())) for root in roots.tolist()] if joined else [0] * len(roots)
        )
        node_depths = node_above = np.array(depths, np.int64)
        closure = np.array([segment for root in joined for segment in joined[root]], np.int64)
        joined_indptr = np.concatenate(([0], np.cumsum(np.array(counts, np.int64))))
        if joined:
            joined_lens = _sums(lens[closure], joined_indptr)
            if joined_lens.sum() > MAX_JOINED_TOKENS:
                raise StructureError(
                    f"the trees are joined to {joined_lens.sum()} tokens, more than "
                    f"{MAX_JOINED_TOKENS}: join them to fewer"
                )
            trees = np.cumsum(parents < 0) - 1
            offsets = system_len + joined_lens - node_depths[1 + roots]
            node_above = node_depths.copy()
            node_above[1:] += offsets[trees]

        arrays = dict(
            lens=lens,
            parents=parents,
            starts=node_starts[1:],
            subtree_stops=np.array(stops[1:], np.int64),
            recomputed=np.empty(0, np.int64),
            joined=closure,
            joined_indptr=joined_indptr,
            tree_starts=node_starts[1:][parents < 0],
            node_starts=node_starts,
            node_lens=node_lens,
            node_parents=node_parents,
            node_levels=np.array(levels, np.int64),
            node_depths=node_depths,
            node_above=node_above,
        )
        for array in arrays.values():
            array.flags.writeable = False
        return cls(num_tokens, system_len, joins=seen, **arrays)

    def recompute(self, indices: np.ndarray) -> Structure:
        """The same prompt, but these tokens of the context see everything before them.

        indices  (R,) int64, ascending
        """
        indices = np.array(indices, np.int64)
        assert (np.diff(indices) > 0).all()
        assert ((indices >= self.system_len) & (indices < self.task_start)).all()
        indices.flags.writeable = False
        return replace(self, recomputed=indices)

    @cached_property
    def roots(self) -> np.ndarray:
        roots = np.flatnonzero(self.parents < 0)
        roots.flags.writeable = False
        return roots

    @cached_property
    def trees(self) -> np.ndarray:
        trees = np.cumsum(self.parents < 0, dtype=np.int64) - 1
        trees.flags.writeable = False
        return trees

    @cached_property
    def joined_lens(self) -> np.ndarray:
        lens = _sums(self.lens[self.joined], self.joined_indptr)
        lens.flags.writeable = False
        return lens

    def joined_tokens(self, trees: np.ndarray) -> np.ndarray:
        """Indices of what each of the trees is joined to, of one behind those of another: int64."""
        firsts = self.joined_indptr[trees]
        segments = self.joined[expand_ranges(firsts, self.joined_indptr[trees + 1] - firsts)]
        return expand_ranges(self.starts[segments], self.lens[segments])

    # One entry a token, so only made where something attends.

    @cached_property
    def sees_all(self) -> np.ndarray:
        sees_all = np.zeros(self.num_tokens, bool)
        sees_all[self.task_start :] = True
        sees_all[self.recomputed] = True
        sees_all.flags.writeable = False
        return sees_all

    @cached_property
    def ends(self) -> np.ndarray:
        ends = np.full(self.num_tokens, self.num_tokens, np.int64)
        ends[self.system_len : self.task_start] = np.repeat(self.subtree_stops, self.lens)
        ends.flags.writeable = False
        return ends

    @cached_property
    def parent_tokens(self) -> np.ndarray:
        tokens = np.arange(-1, self.num_tokens - 1)
        # Only the first token of a segment follows another one than its neighbour.
        parents = self.node_parents[1:]
        tokens[self.starts] = self.node_starts[parents] + self.node_lens[parents] - 1
        for root, _ in self.joins:
            tokens[self.starts[root]] = -1
        tokens.flags.writeable = False
        return tokens

    @property
    def num_segments(self) -> int:
        return len(self.lens)

    @property
    def num_trees(self) -> int:
        return len(self.tree_starts)

    @property
    def task_start(self) -> int:
        """Index, and row, of the first task token."""
        return int(self.node_starts[-1] + self.node_lens[-1])


def _walk(
    parents: list[int],
    lens: list[int],
    starts: list[int],
    task_start: int,
    joins: Mapping[int, Sequence[int]],
) -> tuple[list[int], list[int], list[int]]:
    """Levels, depths and subtree stops of the nodes, one Python step for each."""
    levels, depths = [0] * len(lens), [0] * len(lens)
    stops = [task_start] * len(lens)
    # The way from the system to the node before. In pre-order the parent of a node lies on it.
    way = [0]
    for node in range(1, len(lens)):
        parent, start = parents[node], starts[node]
        while way[-1] != parent:
            stops[way.pop()] = start
            if not way:
                raise StructureError(
                    f"segment {node - 1} follows segment {node - 2} but its parent {parent - 1} is "
                    f"no ancestor of segment {node - 2}: send the segments in pre-order"
                )
        levels[node] = len(way)
        depths[node] = depths[parent] + lens[parent]
        if node - 1 in joins:
            # Behind the deepest of what it sees (DepCache's docs: a join's KV is a function of
            # the set that it sees, whatever the order these stand in).
            depths[node] = max(depths[seen + 1] + lens[seen + 1] for seen in joins[node - 1])
        way.append(node)
    return levels, depths, stops


def _sums(values: np.ndarray, indptr: np.ndarray) -> np.ndarray:
    """Sum of each range of `values` that `indptr` (R + 1,) cuts, int64 (R,); some may be empty."""
    return np.diff(np.concatenate(([0], np.cumsum(values)))[indptr])


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The rows that one forward pass computes: [num_prefix, num_prefix + num_new).

    structure   of the request
    order       (num_tokens,) integers, index of each prompt row; rows behind the prompt hold
                generated tokens and have index == row. The task comes last, in order.
    num_prefix  rows already in the KV cache
    num_new     rows computed now, >= 1; may end inside the prompt (a chunk) or go past it

    The new rows of system and context are in pre-order, and whatever a new row sees is in the
    rows up to its own. Cached rows may be any set for which that holds: normally whole
    prefixes of paths, but a token may also be recomputed below cached descendants.

    Derived:

    num_rows       num_prefix + num_new
    indices        (num_rows,) int64, index of each row
    row_of         (num_tokens,) int32, row of each index; -1 where not yet in the KV cache
    context_start  number of new rows that belong to the system
    tail_start     the same, plus those of the context; the rest is task and output
    """

    structure: Structure
    order: np.ndarray = field(repr=False)
    num_prefix: int
    num_new: int
    num_rows: int = field(init=False)
    indices: np.ndarray = field(init=False, repr=False)
    row_of: np.ndarray = field(init=False, repr=False)
    context_start: int = field(init=False)
    tail_start: int = field(init=False)

    def __post_init__(self) -> None:
        structure, num_prefix = self.structure, self.num_prefix
        num_tokens, task_start = structure.num_tokens, structure.task_start
        assert len(self.order) == num_tokens
        assert num_prefix >= 0
        assert self.num_new >= 1
        num_rows = num_prefix + self.num_new
        indices = np.arange(num_rows)
        num_prompt_rows = min(num_rows, num_tokens)
        indices[:num_prompt_rows] = self.order[:num_prompt_rows]
        row_of = np.full(num_tokens, -1, np.int32)
        row_of[indices[:num_prompt_rows]] = np.arange(num_prompt_rows, dtype=np.int32)

        tail_start = max(0, min(num_rows, task_start) - num_prefix)
        new = indices[num_prefix : num_prefix + tail_start]
        assert (indices[task_start:] == np.arange(task_start, max(num_rows, task_start))).all()
        assert (new[1:] > new[:-1]).all(), "new rows of system and context must be in pre-order"
        above = structure.parent_tokens[new]
        assert ((above < 0) | (row_of[above] >= 0)).all(), "a new row's parent must have a row"
        if len(structure.joined):
            below_system = new[new >= structure.system_len]
            trees = np.searchsorted(structure.tree_starts, below_system, side="right") - 1
            joined = structure.joined_tokens(np.unique(trees))
            assert (row_of[joined] >= 0).all(), "what a new row is joined to must have rows"
        if len(structure.recomputed):
            last = int(new[structure.sees_all[new]].max(initial=-1))
            assert (row_of[: last + 1] >= 0).all(), "a recomputed row needs all rows before it"
        set_field = object.__setattr__
        set_field(self, "num_rows", num_rows)
        set_field(self, "indices", indices)
        set_field(self, "row_of", row_of)
        set_field(self, "context_start", int(np.searchsorted(new, structure.system_len)))
        set_field(self, "tail_start", tail_start)

    @property
    def new_indices(self) -> np.ndarray:
        """(num_new,) int64, index of each new row."""
        return self.indices[self.num_prefix :]
