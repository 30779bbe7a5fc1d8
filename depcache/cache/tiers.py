# SPDX-License-Identifier: Apache-2.0
"""The tiers below the device, as a list: the tree says what happens to nodes, each tier answers.

A new tier is one subclass of `Tier`, and one `append` where the stack is built:
`tests/depcache/cache/test_tiers.py` adds one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from depcache.cache.node import Node, Root

if TYPE_CHECKING:
    from depcache.cache.copies import TierCopies
    from depcache.cache.tree import KVTree


class Tier:
    """One tier: which nodes have a copy in it. This one moves no KV; subclasses do.

    copies  what the tier holds, by node
    """

    def __init__(self, copies: TierCopies) -> None:
        self.copies = copies

    def start(self) -> None:
        """The tier is in the stack. It may hang what it has from before into the tree."""

    def keep(self, leaving: list[tuple[Node, Any]]) -> list[tuple[Node, Any]]:
        """Keep KV that is about to leave the device, or that the tier above has just got.

        leaving  (node, its KV in the tier above), children before parents

        Returns the (node, copy) that are new in this tier; the next one is offered these.
        """
        return []

    def free(self, copy: Any) -> None:
        """Give back what `copy` stands for. The tree gave it up by itself."""

    def borrows(self, node: Node, copy: Any) -> bool:
        """Whether this tier still reads `copy`, which a tier above gave up; it frees it then."""
        return False

    def note_split(self, upper: Node, lower: Node) -> None:
        """`upper` was cut off the front of `lower`. The copy itself is cut already."""

    def note_root(self, root: Root) -> None:
        """`root` is new, and nobody has seen it yet."""


class TierStack:
    """The tiers of one tree, the fastest first; empty for a tree that is on the device alone."""

    def __init__(self) -> None:
        self._tiers: list[Tier] = []

    def __iter__(self) -> Iterator[Tier]:
        return iter(self._tiers)

    def __len__(self) -> int:
        return len(self._tiers)

    @property
    def names(self) -> list[str]:
        """Their names, the fastest first. `Node.copies` has them as keys."""
        return [tier.copies.tier for tier in self._tiers]

    def by_name[Found](self, in_tiers: list[Found]) -> dict[str, Found]:
        """What a match or a look found in each tier, by the tier's name."""
        return dict(zip(self.names, in_tiers, strict=True))

    def append(self, tier: Tier) -> None:
        """Put `tier` below all others."""
        self._tiers.append(tier)
        tier.start()

    def evict(self, tree: KVTree, num_tokens: int) -> list[np.ndarray]:
        """Make room on the device of `tree`: what leaves is kept below, as far as tiers keep it.

        Returns the slots of the victims, one array (num_tokens,) int64 a node: the caller's to
        free. Ends early when nothing is left to evict.
        """
        victims = tree.evict(num_tokens)
        # A patch is on the device alone: a fused request loads nothing, its settling request does.
        leaving: list[tuple[Node, Any]] = [
            each for each in victims if self._tiers and not each[0].root.is_patch
        ]
        for tier in self._tiers:
            if not leaving:
                break
            leaving = tier.keep(leaving)
        for node, _ in victims:
            tree.prune(node)
        return [slots for _, slots in victims]

    def free_released(self) -> None:
        """Free the copies that the tree gave up by itself, unless a tier below still reads them."""
        for number, tier in enumerate(self._tiers):
            released, tier.copies.released = tier.copies.released, []
            for node, copy in released:
                if not any(below.borrows(node, copy) for below in self._tiers[number + 1 :]):
                    tier.free(copy)

    # -- what the tree tells -------------------------------------------------------------------

    def clear(self) -> None:
        """The tree was reset: forget all copies."""
        for tier in self._tiers:
            tier.copies.clear()

    def note_root(self, root: Root) -> None:
        """`root` is new, and nobody has seen it yet."""
        for tier in self._tiers:
            tier.note_root(root)

    def note_split(self, upper: Node, lower: Node) -> None:
        """`upper` was cut off the front of `lower`."""
        for tier in self._tiers:
            tier.copies.split(upper, lower)
            tier.note_split(upper, lower)

    def release(self, node: Node) -> None:
        """The copies of `node` are of no use any more."""
        for tier in self._tiers:
            tier.copies.release(node)

    def offer(self, node: Node) -> None:
        """Value the copies of `node` anew, because they may be worth less than before."""
        for tier in self._tiers:
            tier.copies.offer(node)

    def revalue(self) -> None:
        """Value every copy anew, because the policy has changed its mind."""
        for tier in self._tiers:
            tier.copies.revalue()
