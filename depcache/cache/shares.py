# SPDX-License-Identifier: Apache-2.0
"""What part of each tier a tenant keeps, whatever the others do.

While some tenant has more than its share of a tier, victims are of such tenants alone, the least
worthy first. So nobody is pushed below the share by others, and room that nobody claims is
everybody's. KV that running requests hold is no victim: where all that is above a share is held,
the least worthy of all goes, and `FairQueue.num_within` counts it. What a tier holds and no tree
has yet counts for its tenant as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from depcache.cache.node import Node
from depcache.cache.victims import VictimQueue

_POOL = object()
"""All tenants without a share: none of them is kept from another."""


class Shares:
    """The shares of tenants, each from 0 to 1.

    named     by the tenant's name
    default   of every other; 0 keeps nothing from anybody
    owner_of  from a namespace of the tree to the name of its tenant
    """

    def __init__(
        self, named: Mapping[str, float], default: float, owner_of: Callable[[Any], str]
    ) -> None:
        self._named = dict(named)
        self._owner_of = owner_of
        self.default = default
        self.lowered = [name for name, share in self._named.items() if share < self.default]
        """Names whose share is below that of every other."""

    def key_of(self, node: Node) -> Hashable:
        """The name of the tenant whose KV a node is. O(depth)."""
        return self.tenant_of(node.root.namespace)

    def tenant_of(self, namespace: Any) -> Hashable:
        """The name of the tenant whose KV is in a namespace."""
        name = self._owner_of(namespace)
        return name if self.share_of(name) else _POOL

    def stranger(self, mark: Hashable) -> Hashable:
        """A tenant without a name as yet; `mark` is no text, and nobody else's."""
        return mark if self.default else _POOL

    def share_of(self, key: Hashable) -> float:
        """The share of a tenant; 0 where it has none."""
        if isinstance(key, str):
            return self._named.get(key, self.default)
        return 0.0 if key is _POOL else self.default


class FairQueue(VictimQueue):
    """Victims of one tier, of tenants that have more than their share first.

    A share is of the capacity, and where that is not known of what the tier holds in all.
    Every node is queued twice: among all, and among those of its tenant. A tenant is known while
    it holds something. O(log n) per node, and O(1 / the share of every other) per victim.
    """

    def __init__(self, worth: Callable[[Node], float], shares: Shares) -> None:
        super().__init__(worth)
        self._shares = shares
        self._queues: dict[Hashable, VictimQueue] = {}
        self._key_of: dict[Node, Hashable] = {}  # of what is queued
        self._held: dict[Hashable, int] = {}
        self._apart: Counter[Hashable] = Counter()  # of this, what is not in the tree
        self._sizes: list[dict[Hashable, None]] = []  # tenants by the bits of what they hold
        self._total = 0

    def clear(self) -> None:
        super().clear()
        for each in (self._queues, self._key_of, self._held, self._sizes):
            each.clear()
        self._total = 0
        for key, num_tokens in self._apart.items():
            self._count(key, num_tokens)

    def count(self, node: Node, num_tokens: int) -> None:
        self._count(self._shares.key_of(node), num_tokens)

    def hold(self, tenant: Hashable, num_tokens: int) -> None:
        self._apart[tenant] += num_tokens
        if not self._apart[tenant]:
            del self._apart[tenant]
        self._count(tenant, num_tokens)

    def tenant_of(self, namespace: Any) -> Hashable:
        return self._shares.tenant_of(namespace)

    def stranger(self, mark: Hashable) -> Hashable:
        return self._shares.stranger(mark)

    def _count(self, key: Hashable, num_tokens: int) -> None:
        old = self._held.get(key, 0)
        new = old + num_tokens
        self._total += num_tokens
        if old.bit_length() != new.bit_length():
            if old:
                del self._sizes[old.bit_length()][key]
            if new:
                while len(self._sizes) <= new.bit_length():
                    self._sizes.append({})
                self._sizes[new.bit_length()][key] = None
        if new:
            self._held[key] = new
        else:
            del self._held[key]
            self._queues.pop(key, None)

    def check(self, held: Sequence[Node]) -> None:
        sums = Counter(self._apart)
        for node in held:
            sums[self._shares.key_of(node)] += node.num_tokens
        if sums != self._held or sums.total() != self._total:
            raise RuntimeError(f"tenants hold {dict(sums)}, but {self._held} is counted")
        sized = {key: bits for bits, keys in enumerate(self._sizes) for key in keys}
        if sized != {key: number.bit_length() for key, number in sums.items()}:
            raise RuntimeError("tenants are sorted wrong by what they hold")
        queued = {node: key for key, queue in self._queues.items() for node in queue}
        if queued != self._key_of or set(queued) != set(self):
            raise RuntimeError("the queues of the tenants are not the queue of all")

    def offer(self, node: Node) -> None:
        super().offer(node)
        key = self._key_of.get(node)
        if key is None:
            key = self._key_of[node] = self._shares.key_of(node)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = VictimQueue(self._worth)
        queue.offer(node)

    def withdraw(self, node: Node) -> None:
        super().withdraw(node)
        if (key := self._key_of.pop(node, None)) is not None and key in self._queues:
            self._queues[key].withdraw(node)

    def revalue(self) -> None:
        super().revalue()
        for queue in self._queues.values():
            queue.revalue()

    def pop(self, *, within: bool = True) -> tuple[float, Node] | None:
        queues = [self._queues[key] for key in self.over() if key in self._queues]
        worths = [(found[0], at) for at, each in enumerate(queues) if (found := each.peek())]
        found: tuple[float, Node] | None = None
        if worths:
            found = queues[min(worths)[1]].pop()
        elif within and (found := super().pop()) is not None:
            self.num_within += found[1].num_tokens
        if found is not None:
            self.withdraw(found[1])
        return found

    def over(self) -> list[Hashable]:
        shares, held = self._shares, self._held
        total = max(self.capacity, self._total)
        least = int(shares.default * total).bit_length()
        some = [key for sizes in self._sizes[least:] for key in sizes]
        some += [key for key in (_POOL, *shares.lowered) if key in held]
        return [key for key in dict.fromkeys(some) if held[key] > shares.share_of(key) * total]
