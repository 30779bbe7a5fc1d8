# SPDX-License-Identifier: Apache-2.0
"""Values that no root has asked for yet: by their namespace, and by the tenant whose they are.

A namespace is known by its digest only until its tenant comes. Then its values are hung into the
tree, and all that is the tenant's own besides counts for the tenant's name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator

from sglang_patches.tiers.disk.value import DiskRef, Entry

FoundValue = tuple[Entry, DiskRef]
"""What a list says of a value, and how to load it."""


class UnclaimedValues:
    """Values in the order in which they were found, of each namespace and of each tenant.

    tenant_of  from the digest of an owner to the tenant as shares are counted for
    hold       is told of every tenant how many tokens more, or fewer, wait here
    """

    def __init__(
        self,
        tenant_of: Callable[[bytes], Hashable],
        hold: Callable[[Hashable, int], None],
    ) -> None:
        self._tenant_of = tenant_of
        self._hold = hold
        self._values: dict[bytes, deque[FoundValue]] = {}
        self._owners: dict[bytes, bytes] = {}  # namespace -> owner
        # Tenant -> owner -> namespaces: dicts for their order, and because they lose single ones.
        self._tenants: dict[Hashable, dict[bytes, dict[bytes, None]]] = {}
        self._num_values = self.num_tokens = 0

    def __len__(self) -> int:
        return self._num_values

    def __iter__(self) -> Iterator[FoundValue]:
        return (each for values in self._values.values() for each in values)

    def add(self, entry: Entry, ref: DiskRef) -> None:
        """One more value. What a list of the first release has is its namespace's own."""
        namespace = entry.namespace
        if namespace not in self._values:
            owner = entry.owner or namespace
            self._values[namespace] = deque()
            self._owners[namespace] = owner
            owners = self._tenants.setdefault(self._tenant_of(owner), {})
            owners.setdefault(owner, {})[namespace] = None
        self._values[namespace].append((entry, ref))
        self._count(namespace, 1, ref.num_tokens)

    def claim(self, namespace: bytes) -> Iterable[FoundValue]:
        """Take out all of a namespace."""
        values = self._values.get(namespace, ())
        if values:
            self._count(namespace, -len(values), -sum(ref.num_tokens for _, ref in values))
            self._remove(namespace)
        return values

    def take_one(self, tenants: Iterable[Hashable]) -> DiskRef | None:
        """Take out one value of one of these tenants; None where they have none."""
        for tenant in tenants:
            for namespaces in self._tenants.get(tenant, {}).values():
                namespace = next(iter(namespaces))
                _, ref = self._values[namespace].popleft()
                self._count(namespace, -1, -ref.num_tokens)
                if not self._values[namespace]:
                    self._remove(namespace)
                return ref
        return None

    def tenants(self) -> list[Hashable]:
        """Whose values there are."""
        return [*self._tenants]

    def has(self, owner: bytes) -> bool:
        """Whether there are any of an owner."""
        return owner in self._tenants.get(self._tenant_of(owner), {})

    def rename(self, owner: bytes, old: Hashable) -> None:
        """Count what is an owner's for the tenant that it is now, no longer for `old`."""
        namespaces = self._tenants.get(old, {}).pop(owner, None)
        if namespaces is None:
            return
        if not self._tenants[old]:
            del self._tenants[old]
        new = self._tenant_of(owner)
        self._tenants.setdefault(new, {})[owner] = namespaces
        for namespace in namespaces:
            num_tokens = sum(ref.num_tokens for _, ref in self._values[namespace])
            self._hold(old, -num_tokens)
            self._hold(new, num_tokens)

    def remove(self, is_meant: Callable[[Entry], bool]) -> list[DiskRef]:
        """Take out what is meant. O(values)."""
        removed: list[DiskRef] = []
        for namespace, values in list(self._values.items()):
            kept, gone = deque[FoundValue](), list[DiskRef]()
            for entry, ref in values:
                if is_meant(entry):
                    gone.append(ref)
                else:
                    kept.append((entry, ref))
            if gone:
                self._values[namespace] = kept
                self._count(namespace, -len(gone), -sum(ref.num_tokens for ref in gone))
                if not kept:
                    self._remove(namespace)
                removed += gone
        return removed

    def clear(self) -> None:
        """Forget all."""
        for namespace in list(self._values):
            self.claim(namespace)

    def _count(self, namespace: bytes, num_values: int, num_tokens: int) -> None:
        self._num_values += num_values
        self.num_tokens += num_tokens
        self._hold(self._tenant_of(self._owners[namespace]), num_tokens)

    def _remove(self, namespace: bytes) -> None:
        del self._values[namespace]
        owner = self._owners.pop(namespace)
        tenant = self._tenant_of(owner)
        owners = self._tenants[tenant]
        del owners[owner][namespace]
        if not owners[owner]:
            del owners[owner]
            if not owners:
                del self._tenants[tenant]
