# SPDX-License-Identifier: Apache-2.0
"""One node of the KV tree: a run of tokens with one parent, and where its KV lives."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast
from zlib import crc32

import numpy as np

from depcache.cache.radix import RadixNode

NO_SLOTS = np.empty(0, np.int64)
NO_COPIES: Mapping[str, Any] = MappingProxyType({})  # one for all: most nodes have none

TAIL_MARK = b"\xff\xff\xff\xff"
"""What `Root.behind` begins with for tails: no number of tokens, so no other key begins so."""

PATCH_MARK = 2 * TAIL_MARK
"""The same for patches: behind its mark a tail has a number of tokens."""


class Node(RadixNode["Node"]):
    """A run of cached tokens.

    A node is *resident* while its KV is on the device. It may have copies in lower tiers, or
    none at all: then it only says that a waiting request wants it, or leads to one that does.

    slots     (num_tokens,) int64, the KV slot of each token on the device; None: not resident
    copies    name of a lower tier -> what that tier needs to find the KV there; each change makes
              a new one
    home      position that the first token's key was rotated for; the rest follow one by one
    num_resident_children  children whose KV is on the device, and tails of which some is
    locks     users of this node: direct locks plus children that are locked themselves
    hits      requests that used this node
    last_use  tick of the tree's clock at the last use
    born      tick at which its KV was put on the device
    worth, cost  what the eviction policy remembers of it
    path_hash  CRC of the tokens from the root to its end; kept by policies that sample, else 0
    waiters   waiting requests that will use it -> None, in the order of their arrival, or None
    tails     roots of tails behind a context that ends here -> None, or None
    """

    __slots__ = (
        "born",
        "copies",
        "cost",
        "hits",
        "home",
        "last_use",
        "locks",
        "num_resident_children",
        "path_hash",
        "slots",
        "tails",
        "waiters",
        "worth",
    )

    def __init__(
        self, key: bytes, slots: np.ndarray | None, home: int, parent: Node | None
    ) -> None:
        super().__init__(key, parent)
        self.slots = slots
        self.copies = NO_COPIES
        self.home = home
        self.num_resident_children = 0
        self.locks = 0
        self.hits = 0
        self.last_use = 0
        self.born = 0
        self.worth = 0.0
        self.cost = 0.0
        self.path_hash = 0
        self.waiters: dict[Hashable, None] | None = None
        self.tails: dict[Root, None] | None = None

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def root(self) -> Root:
        """The root that it hangs below, or is. O(depth)."""
        node: Node = self
        while node.parent is not None:
            node = node.parent
        assert isinstance(node, Root)
        return node

    @property
    def is_evictable(self) -> bool:
        return (
            self.slots is not None
            and not self.num_resident_children
            and self.locks == 0
            and self.parent is not None
        )

    @property
    def is_empty(self) -> bool:
        """Nothing is kept by this node: no KV in any tier, no children, nobody waits for it."""
        return self.slots is None and not self.children and not self.waiters and not self.copies

    def __repr__(self) -> str:
        return (
            f"Node(num_tokens={self.num_tokens}, home={self.home}, "
            f"locks={self.locks}, children={len(self.children)})"
        )


class Root(Node):
    """A node above all others. It has no tokens.

    namespace  whose KV is below it: any hashable value
    behind     what the KV below was computed behind and is not on the way from here: nothing for
               ordinary paths. Compared as bytes, so it holds the tokens and no hash of them
    context    of a tail: the nodes that its context ends in, set by `KVTree.hang`
    """

    __slots__ = ("behind", "context", "namespace")

    def __init__(self, namespace: Hashable, behind: bytes = b"") -> None:
        super().__init__(b"", NO_SLOTS, 0, None)
        self.namespace = namespace
        self.behind = behind
        self.context: tuple[Node, ...] = ()
        self.path_hash = crc32(behind)  # equal runs behind different things are different nodes

    @property
    def is_tail(self) -> bool:
        """What is below stands behind a whole context: a task, an answer, later turns, a patch."""
        return self.behind.startswith(TAIL_MARK)

    @property
    def is_patch(self) -> bool:
        """What is below was computed again for a fused request; see `depcache.plan.patch_key`."""
        return self.behind.startswith(PATCH_MARK)

    @property
    def identity(self) -> tuple[Hashable, bytes]:
        """What decides, with the tokens on the way, whose KV a node below is."""
        return self.namespace, self.behind


def slots_of(nodes: Sequence[Node]) -> np.ndarray:
    """Device slots of resident nodes, one behind the other: int64 (sum of tokens,)."""
    return np.concatenate([cast(np.ndarray, node.slots) for node in nodes]) if nodes else NO_SLOTS


def path_of(node: Node) -> list[Node]:
    """`node` and its ancestors, the root left out, deepest first."""
    nodes: list[Node] = []
    while node.parent is not None:
        nodes.append(node)
        node = node.parent
    return nodes


def path_key_of(node: Node) -> bytes:
    """Raw key of the whole path that ends with `node`."""
    return b"".join(above.key for above in reversed(path_of(node)))
