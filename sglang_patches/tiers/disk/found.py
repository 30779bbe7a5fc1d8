# SPDX-License-Identifier: Apache-2.0
"""What an earlier process left on disk, and how it gets back into the tree.

A value names its namespace by a digest. Those of everyone are known and are hung into the tree
at once; that of a tenant's salt is known only when the tenant comes, so such values wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from depcache.cache import KVTree, TierCopies
from depcache.cache.node import Node, Root
from depcache.cache.radix import TOKEN_BYTES
from depcache.prompt.layout import LAYOUTS
from sglang_patches.requests.tenants import Namespace
from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.disk.value import DiskRef, Entry
from sglang_patches.tiers.disk.worth import is_for_disk


class FoundValues:
    """Values that no root has asked for yet, by namespace digest."""

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

    @property
    def num_values(self) -> int:
        """Those that are not in the tree. O(namespaces)."""
        return sum(map(len, self._unclaimed.values()))

    def read(self) -> None:
        """Find all values that are there; for a tree that has the tier, but no copies in it yet."""
        for entry, ref in self._tier.entries():
            self._unclaimed.setdefault(entry.namespace, deque()).append((entry, ref))
        for layout in LAYOUTS:
            namespace = Namespace(None, layout)
            if self._digest(namespace) in self._unclaimed:
                self._tree.root(namespace)  # a new root asks for what is there

    def attach(self, root: Root) -> None:
        """Hang what is there for the new root below it."""
        if not is_for_disk(root):  # a digest of its context would be made, and kept, for nothing
            return
        entries = self._unclaimed.pop(self._digest(*root.identity), None)
        # What a value hangs below begins further up, but may end further down: a node that was
        # stored whole and split later.
        for entry, ref in sorted(entries or (), key=lambda item: item[0].num_above):
            if not self._attach_one(root, entry, ref):
                self._tier.delete(ref)

    def _attach_one(self, root: Node, entry: Entry, ref: DiskRef) -> bool:
        """False when the value is of no use: nothing leads to it, or others have all of it."""
        path, num_known = self._tree.walk(root, entry.path, only_resident=False)
        num_above = entry.num_above
        if num_known < num_above or num_known == entry.num_path:
            return False
        if num_known > num_above:
            known, ref = ref.split(num_known - num_above)
            self._tier.delete(known)
        above = path[-1] if path else root
        rest, home = entry.path[num_known * TOKEN_BYTES :], entry.home + num_known - num_above
        self._copies.add(self._tree.grow(above, rest, home)[-1], ref)
        return True

    def delete_one(self) -> bool:
        """Delete one value to make room; False when there is none."""
        for digest, entries in self._unclaimed.items():
            self._tier.delete(entries.popleft()[1])
            if not entries:
                del self._unclaimed[digest]
            return True
        return False

    def forget(
        self, starts: Iterable[bytes], tenant: str | None = None, behind: Iterable[bytes] = ()
    ) -> int:
        """Delete values by the paths they belong to; their tokens.

        starts  raw tokens of paths; all that begins with one of them is meant
        tenant  whose values; None for everyone's
        behind  what joined trees of these paths are computed behind, see `Root.behind`
        """
        wanted = set(starts)
        sizes = sorted({len(start) for start in wanted})
        roots = [(), *((each,) for each in behind)]
        only = {
            self._digest(Namespace(tenant, layout), *root) for layout in LAYOUTS for root in roots
        }
        num_tokens = 0
        for digest in list(self._unclaimed):
            if tenant is not None and digest not in only:
                continue
            kept: deque[tuple[Entry, DiskRef]] = deque()
            for entry, ref in self._unclaimed[digest]:
                if any(entry.path[:size] in wanted for size in sizes):
                    self._tier.delete(ref)
                    num_tokens += ref.num_tokens
                else:
                    kept.append((entry, ref))
            self._unclaimed[digest] = kept
            if not kept:
                del self._unclaimed[digest]
        return num_tokens

    def clear(self) -> None:
        """Forget them; they stay on disk."""
        self._unclaimed.clear()
