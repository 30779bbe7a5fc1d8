# SPDX-License-Identifier: Apache-2.0
"""What is on disk from before: claimed by the root it belongs to, deleted where it is of no use."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from depcache.cache import KVTree, Shares, Tier, TierCopies
from depcache.cache.invariants import check_tree
from depcache.cache.radix import to_key
from sglang_patches.requests.tenants import Namespace
from sglang_patches.tiers.disk import found as found_module
from sglang_patches.tiers.disk.found import FoundValues
from sglang_patches.tiers.disk.neighbours import LOOK_EVERY_S
from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.disk.value import DiskRef, Entry
from tests.helpers.ends import SLOWEST_S
from tests.sglang_patches.tiers.disk.make import MANY, MARK, ROWS, Clock, look, store_all

pytestmark = pytest.mark.sglang

Value = tuple[Namespace, list[int], int] | tuple[Namespace, list[int], int, bytes]
"""(namespace, path, own tokens), of a joined tree with what it is computed behind"""

EVERYONE, TENANT = Namespace(None), Namespace("salt")


class DiskSide(Tier):
    """As much of the disk tier as hangs found values below new roots."""

    def __init__(
        self, tree: KVTree, tier: DiskTier, tenants: Sequence[str | None] = (None,)
    ) -> None:
        super().__init__(TierCopies(tree, "disk", cut=DiskRef.split))
        self.found = FoundValues(tree, self.copies, tier, digest_of, tenants)
        self.note_root = self.found.attach


def digest_of(namespace: Namespace, behind: bytes = b"") -> bytes:
    return MARK.namespace_digest(namespace.parts, behind)


def nodes_of(values: Iterable[Value], *, has_owners: bool = True) -> list[tuple[Entry, np.ndarray]]:
    """Entries and rows to store; positions as in layout `tree`."""
    nodes = []
    for namespace, path, num_own, *behind in values:
        digest = digest_of(namespace, *behind)
        raw = np.array(path, "<i4").tobytes()
        owner = MARK.tenant_digest(namespace.tenant) if has_owners else b""
        entry = Entry(digest, raw, num_own, len(path) - num_own, owner)
        nodes.append((entry, np.zeros((num_own, ROWS.num_bytes), np.uint8)))
    return nodes


def restart(
    folder: Path,
    values: list[Value],
    *,
    has_owners: bool = True,
    shares: Shares | None = None,
    tenants: Sequence[str | None] = (None,),
) -> tuple[KVTree, FoundValues, DiskTier]:
    """A tree on a folder in which another process has left `values`.

    has_owners  False: as the first release lists them
    tenants     see FoundValues
    """
    tier = DiskTier(MARK, folder, MANY)
    store_all(tier, nodes_of(values, has_owners=has_owners))
    tier.close()
    tier = DiskTier(MARK, folder, MANY)
    tree = KVTree(shares=shares)
    side = DiskSide(tree, tier, tenants)
    tree.tiers.append(side)
    side.found.read()
    return tree, side.found, tier


class Beside:
    """A tree whose disk tier has a living neighbour, which stores what a test says."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.neighbour = DiskTier(MARK, folder, MANY)
        self.tier = DiskTier(MARK, folder, MANY, clock=self.clock)
        self.tree = KVTree()
        side = DiskSide(self.tree, self.tier)
        self.tree.tiers.append(side)
        self.found = side.found

    def hear(self, *values: Value) -> None:
        """The neighbour stores `values`, and they are heard."""
        store_all(self.neighbour, nodes_of(values))
        self.clock.now += LOOK_EVERY_S
        look(self.tier, self.found.hear)
        check_tree(self.tree)

    def compute(self, path: list[int], home: int = 0) -> None:
        """Everyone's `path` is on the device here."""
        root = self.tree.root(EVERYONE)
        self.tree.insert(root, to_key(np.array(path)), np.arange(len(path)), home)

    def close(self) -> None:
        self.neighbour.close()
        self.tier.close()


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Beside]:
    beside = Beside(tmp_path)
    yield beside
    beside.close()


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
    assert found.give_up_one() and found.give_up_one() and not found.give_up_one()
    tier.drain(SLOWEST_S)
    assert tier.num_values == 0
    tier.close()


def owner_of(namespace: Namespace) -> str:
    """A tenant's name is what stands before a stroke."""
    return (namespace.tenant or "").partition("/")[0]


def give_up_all(tree: KVTree, found: FoundValues, tier: DiskTier) -> list[int]:
    """First tokens of the values in the order in which they are given up."""
    order: list[int] = []
    there = {entry.path for entry, _ in tier.entries()}
    while found.give_up_one():
        check_tree(tree)
        tier.drain(SLOWEST_S)
        now = {entry.path for entry, _ in tier.entries()}
        order += [int(np.frombuffer(path, "<i4")[0]) for path in there - now]
        there = now
    assert not there and found.num_values == 0
    tier.close()
    return order


def test_a_tenant_that_has_not_come_back_keeps_its_share(tmp_path: Path) -> None:
    quiet = [(Namespace("quiet"), [number], 1) for number in (1, 2)]
    loud = [(Namespace("loud"), [number], 1) for number in range(11, 17)]
    other = [(Namespace("other"), [number], 1) for number in (21, 22)]
    shares = Shares({"quiet": 0.25, "loud": 0.1}, 0.0, owner_of)
    tenants = (None, "quiet", "loud")
    tree, found, tier = restart(tmp_path, [*quiet, *loud, *other], shares=shares, tenants=tenants)
    tree.root(Namespace("loud"))
    check_tree(tree)
    order = give_up_all(tree, found, tier)
    # Ten values in all: two of "quiet" and one of "loud" are within a share, and go last.
    assert order[:7] == [21, 22, 11, 12, 13, 14, 15]
    assert sorted(order[7:]) == [1, 2, 16]
    assert next(iter(tree.tiers)).copies.victims.num_within == 3


def test_a_tenant_of_whom_only_the_digest_is_known_has_the_share_of_all_others(
    tmp_path: Path,
) -> None:
    """Until it comes, and then its other namespaces count for its name as well."""
    few, many = Namespace("few"), Namespace("many/key")
    values: list[Value] = [(few, [1], 1), (few, [2], 1)]
    values += [(many, [number], 1) for number in range(11, 15)]
    values += [(Namespace("many/key", "sequential"), [number], 1) for number in range(15, 19)]
    shares = Shares({"many": 0.5}, 0.2, owner_of)
    tree, found, tier = restart(tmp_path / "unknown", values, shares=shares)
    assert give_up_all(tree, found, tier)[:6] == [*range(11, 17)]
    tree, found, tier = restart(tmp_path / "known", values, shares=shares)
    tree.root(many)
    check_tree(tree)
    order = give_up_all(tree, found, tier)
    assert order[:3] == [15, 16, 17] and sorted(order[3:]) == [1, 2, 11, 12, 13, 14, 18]


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


JOINED: list[Value] = [
    (TENANT, [1, 2], 2, b"seen"),
    (TENANT, [1, 2], 2, b"other"),
    (Namespace("salt", "sequential", "an adapter"), [1], 1),
    (TENANT, [5], 1),
    (Namespace("other"), [1, 2], 2, b"seen"),
]


def test_a_tenants_are_forgotten_whatever_they_are_behind(tmp_path: Path) -> None:
    _, found, tier = restart(tmp_path, JOINED)
    assert found.forget([np.array([1], "<i4").tobytes()], "salt") == 5
    assert found.num_values == 2
    tier.close()


def test_a_list_of_the_first_release_tells_a_tenants_by_what_they_are_behind(
    tmp_path: Path,
) -> None:
    _, found, tier = restart(tmp_path, JOINED, has_owners=False)
    starts = [np.array([1], "<i4").tobytes()]
    assert found.forget(starts, "salt") == 0
    assert found.forget(starts, "salt", [b"seen"]) == 2
    assert found.num_values == 4
    tier.close()


def test_what_a_neighbour_stores_hangs_below_roots_that_are_there(beside: Beside) -> None:
    beside.hear((EVERYONE, [1, 2, 3], 3))
    assert tokens_found(beside.tree, EVERYONE, [1, 2, 3]) == 3
    beside.hear((EVERYONE, [1, 2, 3, 4, 5], 2), (EVERYONE, [1, 2, 6], 1))
    assert tokens_found(beside.tree, EVERYONE, [1, 2, 3, 4, 5]) == 5
    assert tokens_found(beside.tree, EVERYONE, [1, 2, 6]) == 3
    beside.hear((TENANT, [1, 2], 2))
    assert beside.found.num_values == 1
    assert tokens_found(beside.tree, TENANT, [1, 2]) == 2
    beside.hear((TENANT, [1, 2, 7], 1))
    assert tokens_found(beside.tree, TENANT, [1, 2, 7]) == 3
    assert beside.found.num_values == 0


def test_a_share_is_of_what_neighbours_hold_as_well_and_kept_among_our_own(beside: Beside) -> None:
    victims = next(iter(beside.tree.tiers)).copies.victims
    beside.hear((EVERYONE, [1, 2, 3], 3), (EVERYONE, [4], 1))
    assert victims.capacity == 4
    assert len(victims) == 0 and not beside.found.give_up_one()


def test_what_is_on_the_device_here_needs_not_be_written_a_second_time(beside: Beside) -> None:
    beside.compute([1, 2, 3, 4])
    beside.hear((EVERYONE, [1, 2], 2))
    assert tokens_found(beside.tree, EVERYONE, [1, 2, 3, 4]) == 2
    beside.hear((EVERYONE, [1, 2, 3, 4, 5, 6], 4))  # two tokens that are here, and two more
    assert tokens_found(beside.tree, EVERYONE, [1, 2, 3, 4, 5, 6]) == 6
    assert beside.tier.num_values == 2


def test_rows_that_are_rotated_for_another_place_are_not_taken_for_a_nodes_own(
    beside: Beside,
) -> None:
    beside.compute([1, 2, 3], home=40)
    beside.hear((EVERYONE, [1, 2, 3], 3))
    assert tokens_found(beside.tree, EVERYONE, [1, 2, 3]) == 0
    assert beside.tier.num_values == 0 and beside.neighbour.num_values == 1


def test_what_leads_nowhere_here_is_left_to_the_neighbour(beside: Beside) -> None:
    store_all(beside.neighbour, nodes_of([(EVERYONE, [8, 9, 9], 1)]))
    beside.hear((EVERYONE, [1], 1))
    assert tokens_found(beside.tree, EVERYONE, [1]) == 1
    assert beside.tier.num_values == 1
    beside.tier.drain(SLOWEST_S)
    assert beside.neighbour.num_values == 2


def test_much_that_is_heard_at_once_is_taken_in_several_passes(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found_module, "AT_ONCE", 3)
    beside.hear(*((EVERYONE, [number], 1) for number in range(1, 9)))
    assert beside.found.num_values == 8 - 3
    beside.found.hear()
    assert beside.found.num_values == 8 - 2 * 3
    beside.found.hear()
    assert sum(tokens_found(beside.tree, EVERYONE, [number]) for number in range(1, 9)) == 8


def test_to_make_room_nothing_of_a_neighbour_is_given_up(beside: Beside) -> None:
    store_all(beside.tier, nodes_of([(EVERYONE, [7, 8], 2)]))
    beside.found.read()
    beside.hear((EVERYONE, [1, 2], 2), (EVERYONE, [7, 8, 9], 1), (TENANT, [1, 2], 2))
    while beside.found.give_up_one():
        check_tree(beside.tree)
    beside.tier.drain(SLOWEST_S)
    assert beside.tier.used_bytes == 0
    assert beside.tier.num_values == 3 and beside.found.num_values == 1
    assert tokens_found(beside.tree, EVERYONE, [1, 2]) == 2
    assert tokens_found(beside.tree, EVERYONE, [7, 8, 9]) == 1  # of use when 7, 8 are there again
    assert tokens_found(beside.tree, TENANT, [1, 2]) == 2


def test_what_a_neighbour_removes_is_forgotten_and_what_it_leaves_can_be_given_up(
    beside: Beside,
) -> None:
    values: list[Value] = [(EVERYONE, [number, 1], 2) for number in range(1, 5)]
    beside.hear(*values, (TENANT, [1, 2], 2))
    assert not beside.found.give_up_one()
    for entry, ref in list(beside.neighbour.entries())[:3]:
        assert len(entry.path) == 8
        beside.neighbour.delete(ref)
    beside.neighbour.drain(SLOWEST_S)
    beside.hear()
    assert sum(tokens_found(beside.tree, *value[:2]) for value in values) == 2
    beside.neighbour.close()
    beside.hear()
    assert beside.tier.used_bytes > 0
    while beside.found.give_up_one():
        check_tree(beside.tree)
    beside.tier.drain(SLOWEST_S)
    assert beside.tier.num_values == beside.tier.used_bytes == beside.found.num_values == 0
