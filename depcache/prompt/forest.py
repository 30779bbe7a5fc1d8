# SPDX-License-Identifier: Apache-2.0
"""The structure of one prompt as plain integers: system, a forest of segments, task.

The tokens of a prompt lie in *pre-order*; "index" always means index in this order:

    index   0          system_len                      task_start      num_tokens
            |  system  | root | child | grandchild | ...  |     task      |
                         \\__ starts[0]                     \\__ at least one token

A segment is a run of tokens with one parent (what the paper calls a compressed node of
the dependency tree: DepCache, section 3.1, Algorithm 1). All ranges are half-open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depcache.errors import PromptError, shorten
from flashinfer_masks.visibility import Structure, StructureError

IntArray = NDArray[np.int64]

MAX_TOKENS = 2**31 - 1
"""Longest prompt a forest describes; far beyond any context, so that no sum overflows."""

MAX_LEVELS = 1024
"""Most segments on one way from a root to a leaf; a deeper tree is damage, not a graph."""


@dataclass(frozen=True, eq=False)
class Forest:
    """Segments of one prompt in pre-order. Build it with `Forest.make`, which checks it.

    structure  what follows from lengths and parents, for masks and plans too

    The arrays are read-only. A prompt without context has `num_segments == 0`.
    """

    structure: Structure

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole prompt."""
        return self.structure.num_tokens

    @property
    def system_len(self) -> int:
        """Tokens before the first segment."""
        return self.structure.system_len

    @property
    def lens(self) -> IntArray:
        """(num_segments,) int64, tokens of each segment, >= 1."""
        return self.structure.lens

    @property
    def parents(self) -> IntArray:
        """(num_segments,) int64, parent segment; -1 is a root, a child of the system."""
        return self.structure.parents

    @property
    def starts(self) -> IntArray:
        """(num_segments,) int64, index of the first token."""
        return self.structure.starts

    @property
    def subtree_stops(self) -> IntArray:
        """(num_segments,) int64, first index past the last descendant."""
        return self.structure.subtree_stops

    @cached_property
    def depths(self) -> IntArray:
        """(num_segments,) int64, tokens from the end of the system to the first token.

        On the longest way: a tree that is joined to others sits behind the deepest of them.
        """
        return _freeze(self.structure.node_depths[1:] - self.system_len)

    @property
    def trees(self) -> IntArray:
        """(num_segments,) int64, number of the tree, 0.. in order."""
        return self.structure.trees

    @property
    def num_segments(self) -> int:
        return self.structure.num_segments

    @property
    def num_trees(self) -> int:
        return self.structure.num_trees

    @property
    def context_len(self) -> int:
        """Tokens of all segments."""
        return self.task_start - self.system_len

    @property
    def task_start(self) -> int:
        """Index of the first task token."""
        return self.structure.task_start

    @property
    def task_len(self) -> int:
        return self.num_tokens - self.task_start

    @property
    def stops(self) -> IntArray:
        """(num_segments,) int64, first index past each segment's own tokens."""
        return self.starts + self.lens

    @classmethod
    def make(
        cls,
        num_tokens: int,
        system_len: int,
        lens: Sequence[int] | NDArray[Any],
        parents: Sequence[int] | NDArray[Any],
        joins: Mapping[int, Sequence[int]] | None = None,
    ) -> Forest:
        """Checks the numbers and derives the rest, in O(num_segments).

        joins  root of a tree -> segments of earlier trees that the whole tree sees too

        Raises PromptError when a number is no int or out of range, a segment is empty,
        a parent does not come before its children, the order is not pre-order, a tree is
        more than `MAX_LEVELS` segments deep, joins are not in normal form (see
        `Structure.joins`), or no token is left for the task.
        """
        num_tokens = _read_int(num_tokens, "the number of prompt tokens")
        system_len = _read_int(system_len, "the system length")
        if not 1 <= num_tokens <= MAX_TOKENS:
            raise PromptError(
                f"a prompt must have 1 to {MAX_TOKENS} tokens, not {shorten(num_tokens)}: "
                "send at least the tokens of a task"
            )
        if not 0 <= system_len < num_tokens:
            raise PromptError(
                f"the system length is {shorten(system_len)}, but the prompt has {num_tokens} "
                "tokens: it must leave at least one token for the task"
            )
        lens_array = _read_ints(lens, num_tokens, "segment lengths")
        parents_array = _read_ints(parents, num_tokens, "segment parents")
        num_segments = len(lens_array)
        if len(parents_array) != num_segments:
            raise PromptError(
                f"there are {num_segments} segment lengths but {len(parents_array)} segment "
                "parents: send one parent for each segment"
            )
        bad = np.flatnonzero((lens_array < 1) | (lens_array > num_tokens))
        if len(bad):
            i = int(bad[0])
            raise PromptError(
                f"segment {i} has length {int(lens_array[i])}: a length must be at least 1 and "
                f"at most the {num_tokens} tokens of the prompt"
            )
        context_len = int(lens_array.sum())
        if system_len + context_len >= num_tokens:
            raise PromptError(
                f"system ({system_len} tokens) and segments ({context_len}) leave no token for "
                f"the task in a prompt of {num_tokens}: append at least one task token"
            )
        bad = np.flatnonzero((parents_array < -1) | (parents_array >= np.arange(num_segments)))
        if len(bad):
            i = int(bad[0])
            raise PromptError(
                f"segment {i} has parent {int(parents_array[i])}: a parent must be -1 (a root) "
                "or the number of an earlier segment"
            )

        try:
            structure = Structure.make(num_tokens, system_len, lens_array, parents_array, joins)
        except StructureError as error:
            raise PromptError(str(error)) from None
        bad = np.flatnonzero(structure.node_levels > MAX_LEVELS)
        if len(bad):
            raise PromptError(
                f"segment {int(bad[0]) - 1} lies more than {MAX_LEVELS} segments deep: "
                "send shorter paths"
            )
        return cls(structure)


def find_twins(tokens: IntArray, forest: Forest) -> tuple[int, int] | None:
    """Returns two segments with one parent that begin with the same token; None if there are none.

    tokens  (num_tokens,) int64, in pre-order
    """
    first_tokens = tokens[forest.starts]
    order = np.lexsort((first_tokens, forest.parents))
    parents, first_tokens = forest.parents[order], first_tokens[order]
    same = (parents[1:] == parents[:-1]) & (first_tokens[1:] == first_tokens[:-1])
    if not same.any():
        return None
    k = int(np.argmax(same))
    return int(order[k]), int(order[k + 1])


def _read_int(value: object, what: str) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise PromptError(f"{what} is {shorten(value)}: it must be an int")
    return int(value)


def _read_ints(values: Sequence[int] | NDArray[Any], max_num: int, what: str) -> IntArray:
    """A fresh 1-D int64 array; cheap to refuse, since lists arrive from outside."""
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or (len(values) and values.dtype.kind not in "iu"):
            raise PromptError(
                f"the {what} have shape {values.shape} and type {values.dtype}: "
                "send one flat list of ints"
            )
    elif not isinstance(values, list | tuple):
        raise PromptError(f"the {what} are {shorten(values)}: send one flat list of ints")
    if len(values) > max_num:
        raise PromptError(
            f"there are {len(values)} {what} in a prompt of {max_num} tokens: "
            "a segment has at least one token"
        )
    if not isinstance(values, np.ndarray):
        # NumPy would take True for 1 and cut 1.5 to 1, so the types are looked at first.
        for kind in set(map(type, values)):
            if kind is not int and (not issubclass(kind, Integral) or issubclass(kind, bool)):
                value = next(value for value in values if type(value) is kind)
                raise PromptError(f"{shorten(value)} is among the {what}: they must be ints")
    try:
        array = np.array(values, dtype=np.int64)
    except OverflowError:
        value = max(values, key=abs)
        raise PromptError(
            f"{shorten(value)} is among the {what}: it is no 64-bit integer"
        ) from None
    if isinstance(values, np.ndarray) and values.dtype == np.uint64 and (array < 0).any():
        raise PromptError(f"{int(values.max())} is among the {what}: it is no 64-bit integer")
    return array


def _freeze(array: IntArray) -> IntArray:
    array.flags.writeable = False
    return array
