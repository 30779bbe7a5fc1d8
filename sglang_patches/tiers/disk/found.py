# SPDX-License-Identifier: Apache-2.0
"""What other processes have on disk, earlier ones and neighbours, and how it gets into the tree.

A value names its namespace by a digest. Those of everyone are known and are hung into the tree
at once; that of a tenant's salt is known only when the tenant comes, so such values wait. They
count for the tenant's share meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from depcache.cache import KVTree, TierCopies
from depcache.cache.node import Node, Root
from depcache.cache.radix import TOKEN_BYTES
from depcache.prompt.layout import LAYOUTS
from sglang_patches.requests.tenants import Namespace
from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.disk.unclaimed import FoundValue, UnclaimedValues
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

    tenants  those whose names are known before they come, as namespaces have them
    """

    def __init__(
        self,
        tree: KVTree,
        copies: TierCopies,
        tier: DiskTier,
        digest: Callable[..., bytes],
        tenants: Sequence[str | None] = (None,),
    ) -> None:
        self._tree = tree
        self._copies = copies
        self._tier = tier
        self._digest = digest
        victims = copies.victims
        self._names = {
            tier.fingerprint.tenant_digest(each): victims.tenant_of(Namespace(each))
            for each in tenants
        }
        self._unclaimed = UnclaimedValues(self._tenant_of, victims.hold)
        # Whose those of neighbours are decides nothing: they count for no share here.
        self._borrowed = UnclaimedValues(lambda owner: None, lambda tenant, num_tokens: None)
        self._heard: deque[FoundValue] = deque()
        self._num_removed = 0  # since the last review

    @property
    def num_values(self) -> int:
        """Those that are not in the tree."""
        return len(self._heard) + len(self._unclaimed) + len(self._borrowed)

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

    def _add(self, values: Iterable[FoundValue]) -> None:
        new: set[bytes] = set()
        for entry, ref in values:
            into = self._unclaimed if self._tier.owns(ref) else self._borrowed
            into.add(entry, ref)
            new.add(entry.namespace)
        for root in self._tree.roots():
            if is_for_disk(root) and self._digest(*root.identity) in new:
                self.attach(root)
        for layout in LAYOUTS:
            namespace = Namespace(None, layout)
            if self._digest(namespace) in new:
                self._tree.root(namespace)  # a new root asks for what is there
        self.note_held()

    def note_held(self) -> None:
        """Shares are of the most tokens that the tier has ever held."""
        victims = self._copies.victims
        num_held = self._copies.num_tokens + self._unclaimed.num_tokens
        victims.capacity = max(victims.capacity, num_held)

    def attach(self, root: Root) -> None:
        """Hang what is there for the root below it."""
        if not is_for_disk(root):  # a digest of its context would be made, and kept, for nothing
            return
        self._note_name(root.namespace)
        digest = self._digest(*root.identity)
        entries = [*self._unclaimed.claim(digest), *self._borrowed.claim(digest)]
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
        waiting = [*self._borrowed]
        self._borrowed.clear()
        self._add(each for each in waiting if self._tier.has(each[1]))

    def give_up_one(self) -> bool:
        """Give up the value that is worth least; False when there is none.

        That is one of a tenant that has not come back, but shares come first.
        """
        victims = self._copies.victims
        if self._delete_one(victims.over()) or self._evict_one(within=False):
            return True
        if ref := self._delete_one(self._unclaimed.tenants()):
            victims.num_within += ref.num_tokens
        return ref is not None or self._evict_one(within=True)

    def _delete_one(self, tenants: Iterable[Hashable]) -> DiskRef | None:
        ref = self._unclaimed.take_one(tenants)
        if ref is not None:
            self._tier.delete(ref)
        return ref

    def _evict_one(self, *, within: bool) -> bool:
        found = self._copies.evict_one(within=within)
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

        meant = self._unclaimed.remove(is_meant) + self._borrowed.remove(is_meant)
        for ref in meant:
            self._tier.delete(ref)
        return sum(ref.num_tokens for ref in meant)

    def _is_much_removed(self) -> bool:
        num_borrowed = self._copies.num_borrowed + len(self._borrowed)
        return self._num_removed > num_borrowed * REVIEW_SHARE

    def _tenant_of(self, owner: bytes) -> Hashable:
        """Whose values are, by the owner's digest."""
        if owner in self._names:
            return self._names[owner]
        return self._copies.victims.stranger(owner)

    def _note_name(self, namespace: Any) -> None:  # a Namespace, which the tree does not look into
        """A tenant has come: what is the tenant's besides counts for the name."""
        if not self._unclaimed:
            return
        owner = self._tier.fingerprint.tenant_digest(namespace.tenant)
        # Whose values do not wait is not remembered: anybody can make up salts.
        if owner not in self._names and self._unclaimed.has(owner):
            before = self._tenant_of(owner)
            self._names[owner] = self._copies.victims.tenant_of(namespace)
            self._unclaimed.rename(owner, before)

    def clear(self) -> None:
        """Forget them; they stay on disk."""
        self._unclaimed.clear()
        self._borrowed.clear()
        self._heard.clear()


def _cut(ref: DiskRef, num_tokens: int) -> tuple[DiskRef, DiskRef | None]:
    """The first tokens of a value, and the others if there are any."""
    return ref.split(num_tokens) if num_tokens < ref.num_tokens else (ref, None)
