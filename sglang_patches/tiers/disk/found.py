# SPDX-License-Identifier: Apache-2.0
"""What other processes have on disk, earlier ones and neighbours, and how it gets into the tree.

A value names its namespace by a digest. Those of everyone are known and are hung into the tree
at once; that of a tenant's salt is known only when the tenant comes, so such values wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from depcache.cache import KVTree, TierCopies
from depcache.cache.node import Node, Root
from depcache.cache.radix import TOKEN_BYTES
from depcache.prompt.layout import LAYOUTS
from sglang_patches.requests.tenants import Namespace
from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.disk.value import DiskRef, Entry
from sglang_patches.tiers.disk.worth import is_for_disk
from sglang_patches.tiers.names import DISK

# Values in one pass of the scheduler: each takes some tens of microseconds.
AT_ONCE = 200
# All that is borrowed is looked through when neighbours have removed this much of it.
REVIEW_SHARE = 1 / 8


class FoundValues:
    """Values that no root has asked for yet, by namespace digest.

    Those of living neighbours are kept apart: giving one up would free nothing.
    """

    def __init__(
        self,
        tree: KVTree,
        copies: TierCopies,
        tier: DiskTier,
        digest: Callable[..., bytes],
    ) -> None:
        self._tree = tree
        self._copies = copies
        self._tier = tier
        self._digest = digest
        self._unclaimed: dict[bytes, deque[tuple[Entry, DiskRef]]] = {}
        self._borrowed: dict[bytes, deque[tuple[Entry, DiskRef]]] = {}
        self._heard: deque[tuple[Entry, DiskRef]] = deque()
        self._num_removed = 0  # since the last review

    @property
    def num_values(self) -> int:
        """Those that are not in the tree. O(namespaces)."""
        return len(self._heard) + sum(map(len, self._values()))

    def read(self) -> None:
        """Find all values that are there; for a tree that has the tier, but no copies in it yet."""
        self._add(self._tier.entries())

    def hear(self) -> None:
        """Find what neighbours have stored since the last call, and give up what they are to have.

        No more than AT_ONCE values of each: the rest comes with the next calls.
        """
        heard = self._tier.hear()
        self._heard.extend(heard.fresh)
        self._num_removed += heard.num_removed
        # Every pass comes here, and in nearly all of them nothing was heard.
        if heard.num_inherited or (heard.num_removed and self._is_much_removed()):
            self._review()
        if self._heard:
            self._add([self._heard.popleft() for _ in range(min(AT_ONCE, len(self._heard)))])
        for _ in range(AT_ONCE):
            if self._tier.free_bytes >= 0 or not self.give_up_one():
                break

    def _add(self, values: Iterable[tuple[Entry, DiskRef]]) -> None:
        new: set[bytes] = set()
        for entry, ref in values:
            into = self._unclaimed if self._tier.owns(ref) else self._borrowed
            into.setdefault(entry.namespace, deque()).append((entry, ref))
            new.add(entry.namespace)
        for root in self._tree.roots():
            if is_for_disk(root) and self._digest(*root.identity) in new:
                self.attach(root)
        for layout in LAYOUTS:
            namespace = Namespace(None, layout)
            if self._digest(namespace) in new:
                self._tree.root(namespace)  # a new root asks for what is there

    def attach(self, root: Root) -> None:
        """Hang what is there for the root below it."""
        if not is_for_disk(root):  # a digest of its context would be made, and kept, for nothing
            return
        digest = self._digest(*root.identity)
        entries = [*self._unclaimed.pop(digest, ()), *self._borrowed.pop(digest, ())]
        # What a value hangs below begins further up, but may end further down: a node that was
        # stored whole and split later.
        for entry, ref in sorted(entries, key=lambda item: item[0].num_above):
            if not self._attach_one(root, entry, ref):
                self._tier.delete(ref)

    def _attach_one(self, root: Node, entry: Entry, ref: DiskRef) -> bool:
        """False when the value is of no use, because nothing leads to it."""
        path, num_known = self._tree.walk(root, entry.path, only_resident=False)
        at = entry.num_above
        if num_known < at:
            return False
        is_borrowed = not self._tier.owns(ref)
        rest: DiskRef | None = ref
        start = 0
        for node in path:
            end = start + node.num_tokens
            if end > at and rest is not None:
                part, rest = _cut(rest, end - at)
                # The rows are rotated for the value's home, and the node may have another.
                is_its = start == at and node.home == part.home + part.start
                if is_its and DISK not in node.copies:
                    self._copies.add(node, part, is_borrowed=is_borrowed)
                else:
                    self._tier.delete(part)
                at = end
            start = end
        if rest is not None:
            above = path[-1] if path else root
            nodes = self._tree.grow(above, entry.path[at * TOKEN_BYTES :], rest.home + rest.start)
            self._copies.add(nodes[-1], rest, is_borrowed=is_borrowed)
        return True

    def _review(self) -> None:
        """Forget what neighbours have removed, and own what they left behind. O(borrowed)."""
        self._num_removed = 0
        for node in self._copies.borrowed():
            ref: DiskRef = node.copies[DISK]
            if self._tier.owns(ref):
                self._copies.own(node)
            elif not self._tier.has(ref):
                self._copies.drop(node)
                self._tree.prune(node)
        waiting, self._borrowed = self._borrowed, {}
        self._add(each for some in waiting.values() for each in some if self._tier.has(each[1]))

    def delete_one(self) -> bool:
        """Delete one value to make room; False when there is none."""
        for digest, entries in self._unclaimed.items():
            self._tier.delete(entries.popleft()[1])
            if not entries:
                del self._unclaimed[digest]
            return True
        return False

    def give_up_one(self) -> bool:
        """Give up the value that is worth least; False when there is none."""
        if self.delete_one():  # of tenants that have not come back
            return True
        found = self._copies.evict_one()
        if found is not None:
            self._tier.delete(found[1])
            self._tree.prune(found[0])
        return found is not None

    def forget(
        self, starts: Iterable[bytes], tenant: str | None = None, behind: Iterable[bytes] = ()
    ) -> int:
        """Delete values by the paths they belong to; their tokens.

        starts  raw tokens of paths; all that begins with one of them is meant
        tenant  whose values; None for everyone's
        behind  what joined trees of these paths are computed behind, see `Root.behind`
        """
        self._add([self._heard.popleft() for _ in range(len(self._heard))])
        wanted = set(starts)
        sizes = sorted({len(start) for start in wanted})
        # What the first release has listed says its owner by its namespace alone.
        roots = [(), *((each,) for each in behind)]
        named = {
            self._digest(Namespace(tenant, layout), *root) for layout in LAYOUTS for root in roots
        }
        owner = self._tier.fingerprint.tenant_digest(tenant)

        def is_meant(entry: Entry) -> bool:
            is_theirs = entry.owner == owner if entry.owner else entry.namespace in named
            return (tenant is None or is_theirs) and any(
                entry.path[:size] in wanted for size in sizes
            )

        num_tokens = 0
        for values in (self._unclaimed, self._borrowed):
            for digest in list(values):
                kept: deque[tuple[Entry, DiskRef]] = deque()
                for entry, ref in values[digest]:
                    if is_meant(entry):
                        self._tier.delete(ref)
                        num_tokens += ref.num_tokens
                    else:
                        kept.append((entry, ref))
                values[digest] = kept
                if not kept:
                    del values[digest]
        return num_tokens

    def _is_much_removed(self) -> bool:
        num_borrowed = self._copies.num_borrowed + sum(map(len, self._borrowed.values()))
        return self._num_removed > num_borrowed * REVIEW_SHARE

    def _values(self) -> Iterator[deque[tuple[Entry, DiskRef]]]:
        return chain(self._unclaimed.values(), self._borrowed.values())

    def clear(self) -> None:
        """Forget them; they stay on disk."""
        self._unclaimed.clear()
        self._borrowed.clear()
        self._heard.clear()


def _cut(ref: DiskRef, num_tokens: int) -> tuple[DiskRef, DiskRef | None]:
    """The first tokens of a value, and the others if there are any."""
    return ref.split(num_tokens) if num_tokens < ref.num_tokens else (ref, None)
