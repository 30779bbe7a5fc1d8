# SPDX-License-Identifier: Apache-2.0
"""Values that wait for their tenants: whose they are, how many tokens, and which goes next."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable

import numpy as np
import pytest

from sglang_patches.tiers.disk.unclaimed import UnclaimedValues
from sglang_patches.tiers.disk.value import DiskRef, Entry, make_ref

pytestmark = pytest.mark.sglang


class Waiting:
    """Unclaimed values beside a plain list of them, which says what is right."""

    def __init__(self) -> None:
        self.names: dict[bytes, Hashable] = {}
        self.held: Counter[Hashable] = Counter()
        self.values = UnclaimedValues(self.tenant_of, self.hold)
        self.plain: list[tuple[Entry, DiskRef]] = []

    def tenant_of(self, owner: bytes) -> Hashable:
        return self.names.get(owner, owner)

    def hold(self, tenant: Hashable, num_tokens: int) -> None:
        self.held[tenant] += num_tokens

    def add(self, namespace: bytes, owner: bytes, number: int, num_tokens: int = 1) -> None:
        path = np.array([number] * num_tokens, "<i4").tobytes()
        entry = Entry(namespace, path, num_tokens, 0, owner)
        value = entry, make_ref(number.to_bytes(4), entry)
        self.values.add(*value)
        self.plain.append(value)

    def forget(self, refs: list[DiskRef]) -> None:
        self.plain = [each for each in self.plain if each[1] not in refs]

    def owner(self, entry: Entry) -> Hashable:
        return self.tenant_of(entry.owner or entry.namespace)

    def check(self) -> None:
        sums: Counter[Hashable] = Counter()
        for entry, ref in self.plain:
            sums[self.owner(entry)] += ref.num_tokens
        assert +self.held == sums
        assert all(number >= 0 for number in self.held.values())
        assert {ref for _, ref in self.values} == {ref for _, ref in self.plain}
        assert len(self.values) == len(self.plain)
        assert self.values.num_tokens == sums.total()
        assert set(self.values.tenants()) == set(sums)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_tenants_tokens_are_counted(seed: int) -> None:
    rng = random.Random(seed)
    waiting = Waiting()
    owners = [bytes([number]) for number in range(6)]
    # Two namespaces of each owner, and one whose list does not say whose it is.
    spaces = [(owner + bytes([which]), owner) for owner in owners for which in range(2)]
    spaces.append((b"old", b""))
    for number in range(300):
        match rng.randrange(7):
            case 0 | 1 | 2:
                waiting.add(*rng.choice(spaces), number, rng.randint(1, 5))
            case 3:
                namespace = rng.choice(spaces)[0]
                waiting.forget([ref for _, ref in waiting.values.claim(namespace)])
                assert not any(entry.namespace == namespace for entry, _ in waiting.plain)
            case 4:
                some = rng.sample(waiting.values.tenants(), min(2, len(waiting.values.tenants())))
                ref = waiting.values.take_one([*some, "nobody"])
                assert (ref is None) == (not some)
                if ref is not None:
                    (entry,) = (each for each, its in waiting.plain if its == ref)
                    assert waiting.owner(entry) == some[0]
                    waiting.forget([ref])
            case 5:
                owner = rng.choice(owners)
                old = waiting.tenant_of(owner)
                assert waiting.values.has(owner) == any(
                    entry.owner == owner for entry, _ in waiting.plain
                )
                waiting.names[owner] = rng.choice(["one", "two"])
                waiting.values.rename(owner, old)
            case _:
                long = waiting.values.remove(lambda entry: len(entry.path) > 4 * 3)
                waiting.forget(long)
                assert all(len(entry.path) <= 4 * 3 for entry, _ in waiting.plain)
        waiting.check()
    waiting.values.clear()
    waiting.plain.clear()
    waiting.check()


def test_a_tenants_oldest_value_goes_first() -> None:
    waiting = Waiting()
    for number in (3, 1, 2):
        waiting.add(b"space", b"owner", number)
    taken = [waiting.values.take_one([b"owner"]) for _ in range(4)]
    assert [None if ref is None else int.from_bytes(ref.key) for ref in taken] == [3, 1, 2, None]
