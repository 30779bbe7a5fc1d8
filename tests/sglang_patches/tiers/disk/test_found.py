# SPDX-License-Identifier: Apache-2.0
"""What is on disk from before: claimed by the root it belongs to, deleted where it is of no use."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from depcache.cache import KVTree, Tier, TierCopies
from depcache.cache.invariants import check_tree
from depcache.cache.radix import to_key
from sglang_patches.requests.tenants import Namespace
from sglang_patches.tiers.disk.found import FoundValues
from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.disk.value import DiskRef, Entry
from tests.helpers.ends import SLOWEST_S
from tests.sglang_patches.tiers.disk.make import MANY, MARK, ROWS, store_all

pytestmark = pytest.mark.sglang

Value = tuple[Namespace, list[int], int] | tuple[Namespace, list[int], int, bytes]
"""(namespace, path, own tokens), of a joined tree with what it is computed behind"""

EVERYONE, TENANT = Namespace(None), Namespace("salt")


class DiskSide(Tier):
    """As much of the disk tier as hangs found values below new roots."""

    def __init__(self, tree: KVTree, tier: DiskTier) -> None:
        super().__init__(TierCopies(tree, "disk", cut=DiskRef.split))
        self.found = FoundValues(tree, self.copies, tier, digest_of)
        self.note_root = self.found.attach


def digest_of(namespace: Namespace, behind: bytes = b"") -> bytes:
    return MARK.namespace_digest(namespace.parts, behind)


def restart(folder: Path, values: list[Value]) -> tuple[KVTree, FoundValues, DiskTier]:
    """A tree on a folder in which another process has left `values`."""
    tier = DiskTier(MARK, folder, MANY)
    nodes = []
    for namespace, path, num_own, *behind in values:
        entry = Entry(
            digest_of(namespace, *behind),
            np.array(path, "<i4").tobytes(),
            num_own,
            len(path) - num_own,
        )
        nodes.append((entry, np.zeros((num_own, ROWS.num_bytes), np.uint8)))
    store_all(tier, nodes)
    tier.close()
    tier = DiskTier(MARK, folder, MANY)
    tree = KVTree()
    side = DiskSide(tree, tier)
    tree.tiers.append(side)
    side.found.read()
    return tree, side.found, tier


def tokens_found(tree: KVTree, namespace: Namespace, path: list[int]) -> int:
    """How many tokens of `path` have a copy on disk, from the root on."""
    nodes, _ = tree.walk(tree.root(namespace), to_key(np.array(path)), only_resident=False)
    return sum(node.num_tokens for node in nodes if "disk" in node.copies)


VALUES: list[Value] = [
    (EVERYONE, [1, 2, 3, 4, 5, 6], 6),  # stored whole, and split after 3 since
    (EVERYONE, [1, 2, 3, 7], 1),
    (EVERYONE, [1, 2, 3, 7, 8, 9], 2),
]


@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_all_is_found_in_whatever_order_it_was_written(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    tree, found, tier = restart(tmp_path, [VALUES[i] for i in order])
    assert found.num_values == 0, "what is everyone's is claimed at once"
    assert tokens_found(tree, EVERYONE, [1, 2, 3, 4, 5, 6]) == 6
    assert tokens_found(tree, EVERYONE, [1, 2, 3, 7, 8, 9]) == 6
    check_tree(tree)
    tier.drain(SLOWEST_S)
    assert tier.num_values == 3
    tier.close()


def test_a_value_that_nothing_leads_to_is_deleted(tmp_path: Path) -> None:
    tree, found, tier = restart(tmp_path, [(EVERYONE, [1, 2, 3], 1), (EVERYONE, [5, 6], 2)])
    tier.drain(SLOWEST_S)
    assert found.num_values == 0 and tier.num_values == 1
    assert tokens_found(tree, EVERYONE, [5, 6]) == 2
    tier.close()


def test_a_tenants_values_wait_for_the_tenant(tmp_path: Path) -> None:
    tree, found, tier = restart(tmp_path, [(TENANT, [1, 2], 2), (EVERYONE, [1, 2], 2)])
    assert found.num_values == 1
    assert tree.namespaces() == [EVERYONE]
    assert tokens_found(tree, TENANT, [1, 2]) == 2
    assert found.num_values == 0
    tier.close()


def test_to_make_room_unclaimed_values_go_one_by_one(tmp_path: Path) -> None:
    _, found, tier = restart(tmp_path, [(TENANT, [1, 2], 2), (TENANT, [3], 1)])
    assert found.delete_one() and found.delete_one() and not found.delete_one()
    tier.drain(SLOWEST_S)
    assert tier.num_values == 0
    tier.close()


@pytest.mark.parametrize(("tenant", "num_tokens"), [(None, 3), ("salt", 2), ("nobody", 0)])
def test_what_begins_with_a_path_is_forgotten_for_one_tenant_or_for_all(
    tmp_path: Path, tenant: str | None, num_tokens: int
) -> None:
    other = Namespace("other")
    _, found, tier = restart(
        tmp_path, [(TENANT, [1, 2], 2), (TENANT, [3, 1], 2), (other, [1], 1), (other, [4], 1)]
    )
    starts = [np.array([1], "<i4").tobytes()]
    assert found.forget(starts, tenant) == num_tokens
    assert found.num_values == 4 - {3: 2, 2: 1, 0: 0}[num_tokens]
    tier.close()


def test_a_joined_tree_of_a_tenant_is_forgotten_by_what_it_is_behind(tmp_path: Path) -> None:
    _, found, tier = restart(
        tmp_path, [(TENANT, [1, 2], 2, b"seen"), (TENANT, [1, 2], 2, b"other"), (TENANT, [5], 1)]
    )
    starts = [np.array([1], "<i4").tobytes()]
    assert found.forget(starts, "salt") == 0
    assert found.forget(starts, "salt", [b"seen"]) == 2
    assert found.num_values == 2
    tier.close()
