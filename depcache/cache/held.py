# SPDX-License-Identifier: Apache-2.0
"""How many tokens of each root a tree holds, kept while the tree changes.

A *root* here is what the rows of prompts begin with, an entity for instance, by the key that
clients call it by. What is held of it is all that begins with it: its own tokens, and those of
every node below. Counting is put off until somebody asks for changes, and then only roots are
counted anew near which something was cached or evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from depcache.cache.node import Node, Root
from depcache.cache.radix import TOKEN_BYTES, first_token
from depcache.cache.tree import KVTree

MAX_ROOTS = 50_000
MAX_SYSTEMS = 64
"""Different beginnings of prompts in one namespace; roots behind others are not known."""

MAX_COUNTED = 4096
"""Nodes that one call counts, about: each takes a fraction of a microsecond."""

MAX_NODES = 4096
"""Nodes that are counted of one root, about: of one with more it is told that it holds so many."""


class _Known(NamedTuple):
    """Where a root is: behind `system`, in a namespace. Both are keys of tokens."""

    namespace: Hashable
    system: bytes
    tokens: bytes

    @property
    def bucket(self) -> tuple[Hashable, bytes, bytes]:
        return (self.namespace, self.system, self.tokens[:TOKEN_BYTES])


class HeldRoots:
    """The roots of a tree that requests have named. It watches the tree, and changes nothing.

    Of two roots of which one begins as the other does, the shorter holds what the longer holds; it
    is counted anew when it is named itself, or something near it is evicted.

    tree   the tree; the owner makes this one of its watchers
    tiers  names of lower tiers whose copies count as held
    """

    def __init__(
        self, tree: KVTree, tiers: Iterable[str] = (), *, max_roots: int = MAX_ROOTS
    ) -> None:
        self._tree = tree
        self._tiers = tuple(tiers)
        self._max_roots = max_roots
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._told: dict[str, int] = {}
        self._buckets: dict[tuple[Hashable, bytes, bytes], dict[str, None]] = {}
        self._systems: dict[Hashable, dict[bytes, int]] = {}
        self._dirty: dict[str, None] = {}

    def __len__(self) -> int:
        """Roots that are known."""
        return len(self._known)

    def note_request(
        self, namespace: Hashable, system: bytes, roots: Iterable[tuple[str, bytes]]
    ) -> None:
        """A request has cached what begins with these roots.

        system  key of the tokens before all rows
        roots   by the key that clients use, with the key of their tokens
        """
        systems = self._systems.setdefault(namespace, {})
        if system not in systems and len(systems) >= MAX_SYSTEMS:
            return
        for name, tokens in roots:
            if not tokens:
                continue
            found = self._known.get(name)
            if found is None:
                found = _Known(namespace, system, tokens)
                self._known[name] = found
                self._buckets.setdefault(found.bucket, {})[name] = None
                systems[system] = systems.get(system, 0) + 1
            self._known.move_to_end(name)
            self._dirty[name] = None
        if not systems:
            del self._systems[namespace]
        while len(self._known) > self._max_roots:
            # It is told of once more, as gone.
            self._forget(next(iter(self._known)))

    def note_tick(self, tick: int) -> None:
        """Nothing here depends on the tree's clock."""

    def note_eviction(self, tier: str, node: Node) -> None:
        """`node` loses its KV in a tier."""
        path: list[bytes] = []
        at = node
        while at.parent is not None:
            path.append(at.key)
            at = at.parent
        if not isinstance(at, Root) or at.behind:
            return  # a tail, or a row behind other rows: it begins with no root
        way = b"".join(reversed(path))
        for system in self._systems.get(at.namespace, ()):
            if way.startswith(system):
                token = way[len(system) : len(system) + TOKEN_BYTES]
                self._dirty.update(self._buckets.get((at.namespace, system, token), {}))

    def note_all(self) -> None:
        """Anything may be gone, as after a flush or when facts were invalidated."""
        self._dirty.update(dict.fromkeys(self._known))

    def take_changes(self, max_counted: int = MAX_COUNTED) -> dict[str, int]:
        """Tokens by root, of those that hold another number than was told last; 0 is gone.

        max_counted  nodes after which the rest is left for the next call
        """
        changed: dict[str, int] = {}
        num_counted = 0
        while self._dirty and num_counted < max_counted:
            name = next(iter(self._dirty))
            del self._dirty[name]
            held, num_nodes = self._count(name)
            num_counted += num_nodes + 1
            if held != self._told.get(name, 0):
                changed[name] = held
            if held:
                self._told[name] = held
            else:
                self._told.pop(name, None)
                self._forget(name)
        return changed

    def held(self) -> dict[str, int]:
        """Tokens by root, as they were told last."""
        return dict(self._told)

    def _forget(self, name: str) -> None:
        known = self._known.pop(name, None)
        if known is None:
            return
        if name in self._told:
            self._dirty[name] = None
        bucket = self._buckets[known.bucket]
        del bucket[name]
        if not bucket:
            del self._buckets[known.bucket]
        systems = self._systems[known.namespace]
        systems[known.system] -= 1
        if not systems[known.system]:
            del systems[known.system]
            if not systems:
                del self._systems[known.namespace]

    def _count(self, name: str) -> tuple[int, int]:
        """Returns the tokens that are held of a root, and how many nodes were looked at."""
        known = self._known.get(name)
        root = None if known is None else self._tree.find_root(known.namespace, b"")
        if known is None or root is None:
            return 0, 0
        key = known.system + known.tokens
        node: Node = root
        at = num_nodes = 0
        while at < len(key):
            child = node.children.get(first_token(key[at : at + TOKEN_BYTES]))
            num_nodes += 1
            if child is None or not self._holds(child):
                return 0, num_nodes
            size = min(len(child.key), len(key) - at)
            if child.key[:size] != key[at : at + size]:
                return 0, num_nodes
            node, at = child, at + len(child.key)
        num_tokens = (at - len(known.system)) // TOKEN_BYTES
        below = list(node.children.values())
        for each in below:
            if num_nodes >= MAX_NODES:
                break
            num_nodes += 1
            if self._holds(each):
                num_tokens += each.num_tokens
                below.extend(each.children.values())
        return num_tokens, num_nodes

    def _holds(self, node: Node) -> bool:
        return node.slots is not None or any(tier in node.copies for tier in self._tiers)
