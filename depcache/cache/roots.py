# SPDX-License-Identifier: Apache-2.0
"""The roots of a tree, and which contexts the tails stand behind.

A tail (task, answer, later turns) has a root of its own, because its KV depends on a whole context
and not on one way. It *hangs* behind the nodes that the context ends in: `Root.context` names
these, and `Node.tails` of each names the root. While a tail is on the device they count it as one
more resident child, so under every eviction policy a tail leaves before its context.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from depcache.cache.node import Node, Root
from depcache.cache.tiers import TierStack


class Roots:
    """What a `KVTree` has above its nodes.

    tiers  are told of new roots
    public_of  from a namespace to one that its requests may read as well, or None
    """

    def __init__(
        self, tiers: TierStack, public_of: Callable[[Any], Hashable | None] | None = None
    ) -> None:
        self.tiers = tiers
        self._public_of = public_of
        self._roots: dict[tuple[Hashable, bytes], Root] = {}

    def root(self, namespace: Hashable, behind: bytes = b"") -> Root:
        """A root of a namespace, which the tree keeps from its first child to its last.

        behind  as for `Root`

        Without a child it is known to the caller alone: whoever only looks leaves nothing behind,
        and whoever grows something later asks for the root anew.
        """
        root = self._roots.get((namespace, behind))
        if root is None:
            root = Root(namespace, behind)
            self.tiers.note_root(root)
        return root

    def find_root(self, namespace: Hashable, behind: bytes) -> Root | None:
        """The same where it has nodes, else None; no tier is told that somebody looked."""
        return self._roots.get((namespace, behind))

    def public_root(self, root: Node) -> Root | None:
        """What requests below `root` may read as well; None where that is nothing else."""
        if self._public_of is None or not isinstance(root, Root):
            return None
        namespace = self._public_of(root.namespace)
        if namespace is None or namespace == root.namespace:
            return None
        return self.root(namespace, root.behind)

    def roots(self) -> list[Root]:
        """Those that have nodes."""
        return list(self._roots.values())

    def namespaces(self) -> list[Hashable]:
        """Those that have nodes."""
        return list(dict.fromkeys(namespace for namespace, _ in self._roots))

    def nodes(self) -> Iterator[Node]:
        """Every node but the roots, resident or not, parents before children."""
        stack: list[Node] = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())

    def hang(self, root: Root, context: Iterable[Node]) -> None:
        """Say what the tail below `root` stands behind, before any of it becomes resident.

        context  the nodes that the context ends in; resident when the tail becomes so

        Does nothing where some of the tail is resident: then it hangs there already. Whoever hangs
        a root without children gives it one next.
        """
        if root.num_resident_children:
            return
        _unhang(root)
        root.context = tuple(dict.fromkeys(context))
        for end in root.context:
            if end.tails is None:
                end.tails = {}
            end.tails[root] = None

    def _keep(self, root: Root) -> None:
        """`root` is about to get a child."""
        if self._roots.setdefault(root.identity, root) is not root:
            raise ValueError(f"{root!r} is not the root of its namespace any more: ask anew")

    def _drop(self, root: Root) -> None:
        """`root` has lost its last child."""
        del self._roots[root.identity]
        _unhang(root)


def nodes_below(node: Node) -> list[Node]:
    """`node` and all that depends on it, tails included, parents before children, each once."""
    below = [node]
    tails: set[Root] = set()
    for each in below:
        below.extend(each.children.values())
        for root in each.tails or ():
            if root not in tails:
                tails.add(root)
                below.extend(root.children.values())
    return below


def _unhang(root: Root) -> None:
    for end in root.context:
        if end.tails is not None:
            end.tails.pop(root, None)
            end.tails = end.tails or None
    root.context = ()
