# SPDX-License-Identifier: Apache-2.0
"""What must hold in a KV tree after every operation: for tests, and for a server in doubt."""

from __future__ import annotations

import numpy as np

from depcache.cache.node import NO_SLOTS, Node
from depcache.cache.radix import TOKEN_BYTES
from depcache.cache.tree import KVTree


def check_tree(tree: KVTree) -> None:
    """Raise RuntimeError if a structural invariant does not hold. O(nodes).

    Keys, slots and children agree; no slot is owned twice; residents' parents are resident;
    locks count direct locks plus locked children; tails and their contexts know each other, and
    that of a resident tail is resident; the totals equal the sums over nodes;
    exactly the unlocked resident leaves are queued; what tenants hold is counted right; nothing
    empty is kept, roots included. The same for the lower tiers of the tree.
    """
    totals = dict.fromkeys(("num_evictable", "num_locked", "num_nodes", "num_resident"), 0)
    slots: list[np.ndarray] = []
    for node in tree.nodes():
        for wrong, what in _problems(tree, node):
            if wrong:
                raise RuntimeError(f"{node!r} {what}")
        totals["num_nodes"] += 1
        if node.slots is not None:
            totals["num_resident"] += 1
            totals["num_locked" if node.locks else "num_evictable"] += node.num_tokens
            slots.append(node.slots)
    for name, expected in totals.items():
        if getattr(tree, name) != expected:
            raise RuntimeError(f"{name} is {getattr(tree, name)}, but the nodes say {expected}")
    _check_owners("a slot", slots)
    tree.victims.check([node for node in tree.nodes() if node.slots is not None])
    for root in tree.roots():
        if not root.children:
            raise RuntimeError(f"the root of {root.namespace!r} is kept for nothing")
        if any(root not in (end.tails or ()) for end in root.context):
            raise RuntimeError(f"a tail of {root.namespace!r} is unknown to its context")
    for tier in tree.tiers:
        tier.copies.check()


def _problems(tree: KVTree, node: Node) -> list[tuple[bool | int, str]]:
    children = node.children.values()
    held = sum(1 for child in children if child.locks)
    below = sum(1 for child in children if child.slots is not None)
    below += sum(1 for root in node.tails or () if root.num_resident_children)
    is_resident = node.slots is not None
    parent = node.parent
    return [
        (not node.num_tokens, "has no tokens"),
        (len(node.key) != TOKEN_BYTES * node.num_tokens, "has a key of another length"),
        (node.locks < held, "has fewer locks than locked children"),
        (node.locks and not is_resident, "is locked and not resident"),
        (node.num_resident_children != below, "counts its resident children wrong"),
        (below and not is_resident, "is not resident, but a child or a tail is"),
        (any(node not in root.context for root in node.tails or ()), "has a stray tail"),
        (node.is_evictable != (node in tree.victims), "is queued and not evictable"),
        (node.is_empty, "is kept for nothing"),
        (parent is None, "is lost"),
        (any(child.parent is not node for child in children), "has a stray child"),
        (any(t != c.first_token for t, c in node.children.items()), "has a wrong edge"),
        (
            node.slots is not None and len(node.slots) != node.num_tokens,
            "has slots of another number",
        ),
    ]


def _check_owners(what: str, owned: list[np.ndarray]) -> None:
    slots = np.concatenate(owned) if owned else NO_SLOTS
    if len(np.unique(slots)) != len(slots):
        raise RuntimeError(f"{what} is owned by two nodes")
