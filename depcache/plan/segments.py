# SPDX-License-Identifier: Apache-2.0
"""A prompt prepared for matching: its segments as plain lists and its tokens as raw bytes.

Built once per request. The system is segment 0 (when it has tokens) and the parent of every
tree, so matching sees one forest of segments from the root of the namespace down. A tree that
is joined to others depends on more than one way: it hangs below a root of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from depcache.cache.node import Node, Root
from depcache.cache.radix import TOKEN_BYTES, to_key
from depcache.cache.tree import KVTree
from depcache.plan.behind_key import make_behind_key
from depcache.plan.join_key import make_join_keys
from depcache.plan.patch_key import PatchKey, make_patch_keys
from depcache.plan.tail_key import make_tail_key
from depcache.prompt.behind import Behind, Ids, ids_of, several_of
from depcache.prompt.forest import Forest, find_twins
from depcache.prompt.layout import Layout, token_positions


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTable:
    """Segments of system and context in pre-order, S in number.

    num_tokens   tokens of the whole prompt
    task_start   index of the first task token
    tokens       token ids of the prompt, as Python ints (dict keys)
    key          the same as raw int32 bytes
    starts, stops, parents   (S,) lists; parent -1 is a root, see `root_of`
    placed       (S,) list: position of the segment's first token in this prompt
    positions    (num_tokens,) int64: position of every token, by index
    behind       root -> what it is computed behind, see `Root.behind`: a joined one, and one that
                 stands behind several chunks
    tail_key     what the tail stands behind, see `make_tail_key`; b"" where it is not cached
    has_twins    a cached node may be met twice in this prompt: two segments with one parent begin
                 with the same token, or something is hidden
    selected     of a fused request bool (num_tokens,), what is computed again; else None
    hidden       segment -> raw tokens that it stands behind in the tree, below its parent, and
                 that are no part of this prompt (see `depcache.prompt.behind`)
    patches      of a fused request that keeps and reads what is computed again: where each row's is
    several      segment -> the same, of several chunks, each below the system
    stored       the first token of the one row that a request is to compute and to store, seeing
                 all before it; None for any other request
    seen         segments that a joined tree names
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
    behind: dict[int, bytes] = field(default_factory=dict)
    tail_key: bytes = field(default=b"", repr=False)
    has_twins: bool = False
    selected: np.ndarray | None = field(default=None, repr=False)
    hidden: dict[int, bytes] = field(default_factory=dict, repr=False)
    patches: list[PatchKey] = field(default_factory=list[PatchKey], repr=False)
    several: dict[int, list[bytes]] = field(default_factory=dict, repr=False)
    stored: int | None = None
    seen: set[int] = field(default_factory=set[int], repr=False)

    @classmethod
    def make(
        cls,
        tokens: np.ndarray,
        forest: Forest,
        layout: Layout,
        selected: np.ndarray | None = None,
        behind: Behind | None = None,
        *,
        keeps_patches: bool = False,
    ) -> SegmentTable:
        """Prepare `tokens` (num_tokens,) int64 in pre-order, cut as `forest` says.

        selected  of a fused request, int64 indices of what is computed again; may be empty
        behind    of a fused request, what its trees stand behind
        keeps_patches  of a fused request, see `patches`
        """
        structure, positions = forest.structure, token_positions(forest, layout)
        if forest.system_len:
            starts, lens = structure.node_starts, structure.node_lens
            parents = structure.node_parents
        else:
            starts, lens, parents = structure.starts, structure.lens, structure.parents
        key = to_key(tokens)
        first = 1 if forest.system_len else 0  # the system is a segment of the table
        roots = structure.roots.tolist()
        given = behind or (None,) * len(roots)
        entries = {
            root + first: entry
            for root, entry in zip(roots, given, strict=True)
            if entry is not None
        }
        several = {root for root, entry in entries.items() if several_of(entry)}
        hidden = {root: _to_keys(entries[root])[0] for root in entries.keys() - several}
        table = cls(
            num_tokens=forest.num_tokens,
            task_start=forest.task_start,
            tokens=tokens.tolist(),
            key=key,
            starts=starts.tolist(),
            stops=(starts + lens).tolist(),
            parents=parents.tolist(),
            placed=positions[starts].tolist(),
            positions=positions,
            tail_key=b"" if selected is not None else make_tail_key(key, forest, layout),
            # What one row is computed behind may be another row.
            has_twins=bool(entries) or find_twins(tokens, forest) is not None,
            selected=None if selected is None else _mark(selected, forest.num_tokens),
            hidden=hidden,
            patches=make_patch_keys(key, forest, selected, behind)
            if keeps_patches and selected is not None
            else [],
        )
        if structure.joins:
            table._hang_joins(forest)
        system = key[: forest.system_len * TOKEN_BYTES]
        for root in several:
            table._hang_behind(root, system, _to_keys(entries[root]))
        return table

    @classmethod
    def storing(cls, tokens: np.ndarray, forest: Forest) -> SegmentTable:
        """Prepare a prompt whose last row is computed behind the other ones, and stored so.

        Its rows are those of a fused request: each of them but the last was computed alone.
        """
        table = cls.make(tokens, forest, "sequential", np.empty(0, np.int64))
        *chunks, last = forest.structure.roots.tolist()
        system = table.key[: forest.system_len * TOKEN_BYTES]
        first = 1 if forest.system_len else 0
        parts = [table.path(chunk + first).removeprefix(system) for chunk in chunks]
        table._hang_behind(last + first, system, parts)
        return replace(table, stored=table.starts[last + first])

    def _hang_behind(self, root: int, system: bytes, chunks: list[bytes]) -> None:
        """Take a row off the system: all that it sees is in the key of its root."""
        self.parents[root] = -1
        self.several[root] = chunks
        self.behind[root] = make_behind_key(system, chunks)

    def _hang_joins(self, forest: Forest) -> None:
        """Take joined trees off the system: all that they see is in the key of their root."""
        first = 1 if forest.system_len else 0  # the system is a segment of the table
        roots = forest.structure.roots[forest.trees].tolist()
        system = self.key[: forest.system_len * TOKEN_BYTES]
        keys = make_join_keys(
            system,
            lambda segment: self.path(segment + first).removeprefix(system),
            roots,
            forest.structure.joins,
        )
        for root, key in keys.items():
            self.parents[root + first] = -1
            self.behind[root + first] = key
        self.seen.update(seg + first for _, seen in forest.structure.joins for seg in seen)

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

    def is_whole(self, matched: Sequence[int]) -> bool:
        """Whether all of each segment matched: (S,) numbers of leading tokens."""
        sizes = zip(matched, self.starts, self.stops, strict=True)
        return all(size == stop - start for size, start, stop in sizes)

    def root_of(self, tree: KVTree, root: Node, segment: int) -> Node:
        """What a segment without a parent hangs below in `tree`.

        root  that of the namespace; for a table without joins any node
        """
        behind = self.behind.get(segment)
        if behind is None:
            return root
        assert isinstance(root, Root)
        return tree.root(root.namespace, behind)

    def behind_of(self, segments: Iterable[int]) -> set[bytes]:
        """What the trees that hold these segments are computed behind, where it has a key."""
        found: set[bytes] = set()
        for segment in segments:
            while self.parents[segment] >= 0:
                segment = self.parents[segment]
            if segment in self.behind:
                found.add(self.behind[segment])
        return found

    def tail_root(self, tree: KVTree, root: Node) -> Root | None:
        """What the tail hangs below in `tree`; None where it is not cached.

        root  that of the namespace
        """
        if not self.tail_key:
            return None
        assert isinstance(root, Root)
        return tree.root(root.namespace, self.tail_key)

    def leaf_ends(self, ends: Sequence[Node | None]) -> list[Node] | None:
        """The nodes that the context ends in; None unless all of it is there.

        ends  (S,) the node that each segment ends in
        """
        is_leaf = [True] * self.num_segments
        for parent in self.parents:
            if parent >= 0:
                is_leaf[parent] = False
        found = [end for end, leaf in zip(ends, is_leaf, strict=True) if leaf]
        return None if None in found else [end for end in found if end is not None]

    def path(self, segment: int) -> bytes:
        """Raw int32 tokens from a segment's root to the segment's end."""
        parts: list[bytes] = []
        while segment >= 0:
            start, stop = self.starts[segment], self.stops[segment]
            parts.append(self.key[start * TOKEN_BYTES : stop * TOKEN_BYTES])
            segment = self.parents[segment]
        return b"".join(reversed(parts))


def _to_keys(entry: Ids | tuple[Ids, ...]) -> list[bytes]:
    return [to_key(np.array(ids, np.int64)) for ids in ids_of(entry)]


def _mark(indices: np.ndarray, num_tokens: int) -> np.ndarray:
    marked = np.zeros(num_tokens, bool)
    marked[indices] = True
    return marked
