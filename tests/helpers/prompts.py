# SPDX-License-Identifier: Apache-2.0
"""Test prompts as nested trees, with everything a test needs to know told from the nesting.

Written from the definitions (a token's ancestors, its depth), one token at a time, and
without the code under test: `depcache` computes the same facts from flat arrays.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LAYOUTS = ("tree", "staggered", "sequential")

Tree = tuple[list[int], list["Tree"]]
"""(tokens of a segment, subtrees below it)"""

FIRST_TOKEN, LAST_TOKEN = 16, 1000
"""Token ids that prompts are drawn from; the test models know 1024."""

UNLUCKY_TOKEN = 1003
BODILESS_TOKEN = 1004
"""Tokens that no prompt is drawn from; `tests.helpers.planted` has a fault for each."""


@dataclass(slots=True)
class TreePrompt:
    """[system | trees | task] in pre-order. Without trees and system it is a plain prompt.

    Derived, one entry per token:

    tokens     token id
    parents    index of the token it follows on its path; -1 for a first token
    positions  RoPE position in `layout`
    keys       the tokens on its path down to itself; None for a task token

    and per segment `segment_lens`, `segment_parents`, as they travel on the wire.
    """

    system: list[int]
    trees: list[Tree]
    task: list[int]
    layout: str = "tree"
    tokens: list[int] = field(init=False)
    parents: list[int] = field(init=False)
    positions: list[int] = field(init=False)
    keys: list[tuple[int, ...] | None] = field(init=False)
    segment_lens: list[int] = field(init=False)
    segment_parents: list[int] = field(init=False)

    def __post_init__(self) -> None:
        assert self.layout in LAYOUTS
        self.tokens, self.parents, self.positions, self.keys = [], [], [], []
        self.segment_lens, self.segment_parents = [], []
        for token in self.system:
            self._append(token, len(self.tokens) - 1, len(self.tokens))
        start = len(self.system)
        for tree in self.trees:
            self._append_tree(tree, len(self.system) - 1, start, -1)
            if self.layout == "staggered":
                start += height(tree)
            elif self.layout == "sequential":
                start = len(self.tokens)
        position = max(self.positions, default=-1) + 1
        for offset, token in enumerate(self.task):
            self._append(token, len(self.tokens) - 1, position + offset)
            self.keys[-1] = None

    def _append(self, token: int, parent: int, position: int) -> None:
        above = self.keys[parent] if parent >= 0 else ()
        self.tokens.append(token)
        self.parents.append(parent)
        self.positions.append(position)
        self.keys.append(None if above is None else (*above, token))

    def _append_tree(self, tree: Tree, parent: int, position: int, segment: int) -> None:
        tokens, children = tree
        own = len(self.segment_lens)
        self.segment_lens.append(len(tokens))
        self.segment_parents.append(segment)
        for offset, token in enumerate(tokens):
            self._append(token, parent, position + offset)
            parent = len(self.tokens) - 1
        for child in children:
            below = len(self.tokens) if self.layout == "sequential" else position + len(tokens)
            self._append_tree(child, parent, below, own)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_context(self) -> int:
        """System and tree tokens: all that a dependency request can find in the cache."""
        return self.num_tokens - len(self.task)

    @property
    def has_twins(self) -> bool:
        """Whether two trees begin alike."""
        firsts = [tokens[0] for tokens, _ in self.trees]
        return len(set(firsts)) < len(firsts)

    @property
    def is_plain(self) -> bool:
        return not self.trees

    def params(self) -> dict[str, Any] | None:
        """`custom_params` of the request, in the ids form; None for a plain prompt."""
        if self.is_plain:
            return None
        return {
            "depcache_version": 2 if self.has_twins else 1,
            "depcache_layout": self.layout,
            "depcache_system_len": len(self.system),
            "depcache_segment_lens": self.segment_lens,
            "depcache_segment_parents": self.segment_parents,
        }

    def mask(self, num_new: int = 0) -> np.ndarray:
        """(n, n) bool with n = num_tokens + num_new: row i attends to column j.

        A token of system or context attends to its ancestors and itself, a token of the task
        or of the answer to everything before it.
        """
        num_tokens = self.num_tokens + num_new
        mask = np.tri(num_tokens, dtype=bool)
        for index in range(self.num_context):
            parent = self.parents[index]
            mask[index] = mask[parent] if parent >= 0 else False
            mask[index, index] = True
        return mask

    def positions_with(self, num_new: int) -> np.ndarray:
        """(num_tokens + num_new,) int64: positions of prompt and answer."""
        following = self.positions[-1] + 1 + np.arange(num_new)
        return np.concatenate((np.array(self.positions, np.int64), following))


def grow(prompt: TreePrompt, behind: list[list[int] | None]) -> tuple[TreePrompt, list[int]]:
    """The prompt in layout `tree` with what its trees stand behind in it, and our context there.

    behind  per tree the tokens before it that are no part of `prompt`; None for none

    Returns it, and per context token of `prompt` the index there.
    """
    grown = [
        tree if ids is None else (ids, [tree])
        for tree, ids in zip(prompt.trees, behind, strict=True)
    ]
    own: list[int] = []
    at = 0
    for tree, ids in [((prompt.system, []), None), *zip(prompt.trees, behind, strict=True)]:
        at += len(ids or ())
        size = _count(tree)
        own += range(at, at + size)
        at += size
    return TreePrompt(prompt.system, grown, prompt.task), own


def _count(tree: Tree) -> int:
    tokens, children = tree
    return len(tokens) + sum(map(_count, children))


def plain(tokens: list[int]) -> TreePrompt:
    """A prompt without dependency data."""
    return TreePrompt([], [], tokens)


def height(tree: Tree) -> int:
    """Tokens on the longest path of a tree."""
    tokens, children = tree
    return len(tokens) + max((height(child) for child in children), default=0)


def random_tokens(rng: random.Random, num_tokens: int) -> list[int]:
    return [rng.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(num_tokens)]


def random_tree(rng: random.Random, first: int | None = None, levels: int = 3) -> Tree:
    """Up to `levels` segments deep, up to two children each, 2 to 5 tokens a segment.

    first  first token; siblings must differ in it
    """
    tokens = random_tokens(rng, rng.randrange(2, 6))
    if first is not None:
        tokens[0] = first
    num_children = rng.randrange(0, 3) if levels > 1 else 0
    firsts = rng.sample(range(FIRST_TOKEN, LAST_TOKEN), num_children)
    return tokens, [random_tree(rng, token, levels - 1) for token in firsts]


def random_forest(rng: random.Random, num_trees: int, levels: int = 3) -> list[Tree]:
    """Trees that may stand in one prompt: no two start with the same token."""
    firsts = rng.sample(range(FIRST_TOKEN, LAST_TOKEN), num_trees)
    return [random_tree(rng, first, levels) for first in firsts]


def chain_tree(rng: random.Random, num_tokens: int, first: int | None = None) -> Tree:
    """One segment."""
    tokens = random_tokens(rng, num_tokens)
    if first is not None:
        tokens[0] = first
    return tokens, []


def with_new_child(rng: random.Random, tree: Tree) -> Tree:
    """The tree with one more subtree below its root, behind the ones it has."""
    tokens, children = tree
    taken = {child[0][0] for child in children}
    first = next(t for t in random_tokens(rng, 1000) if t not in taken)
    return tokens, [*children, random_tree(rng, first, levels=2)]


def without_child(tree: Tree) -> Tree:
    """The tree without its first subtree, so that later ones move in pre-order."""
    tokens, children = tree
    return tokens, children[1:]
