# SPDX-License-Identifier: Apache-2.0
"""Tree, host tier and disk tier under random operations, with real pools and real files.

Every token's KV is a function of the path that leads to it and of its position, so any row in
any tier can be checked at any time: a row that is there must be that one, whatever was split,
moved, forgotten or interrupted on the way.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from depcache.cache import Node, Shares
from depcache.cache.radix import to_key, to_tokens
from depcache.plan import SegmentTable, match_segments
from sglang_patches.tiers.disk.value import Entry
from tests.sglang_patches.tiers.disk.backends import BEHAVIOUR, Behaviour
from tests.sglang_patches.tiers.world import DEVICE_TOKENS, HOST_TOKENS, IDENTITIES, World, run

pytestmark = pytest.mark.sglang


@pytest.mark.parametrize("seed", range(8))
def test_every_row_in_every_tier_is_the_one_of_its_path(tmp_path: Path, seed: int) -> None:
    world = run(tmp_path, f"together {seed}", seed, 250)
    world.disk.tier.close(5)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_with_shares_of_tenants(tmp_path: Path, seed: int) -> None:
    """What tenants hold of each tier is counted right after every operation, see `check_tree`."""
    shares = Shares({"salt": 0.4}, 0.1, lambda namespace: namespace.tenant or "")
    world = run(tmp_path, f"shares {seed}", seed, 250, shares)
    world.disk.tier.close(5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 40))
def test_the_same_for_longer(tmp_path: Path, seed: int) -> None:
    world = run(tmp_path, f"together {seed}", seed, 3000)
    world.disk.tier.close(5)


def test_the_operations_reach_the_disk_and_come_back(tmp_path: Path) -> None:
    """The test above is worth something only if things move."""
    stored = loaded = 0
    for seed in (1, 3):
        world = run(tmp_path / str(seed), f"reach {seed}", seed, 250)
        stored += world.disk.stored
        loaded += world.disk.loaded
        world.disk.tier.close(5)
    assert stored > 0
    assert loaded > 0
    assert threading.active_count() < 50


def make_world(
    folder: Path, name: str, disk_bytes: int = 1 << 30, shares: Shares | None = None
) -> World:
    """A world in which nothing happens by itself."""
    BEHAVIOUR[name] = Behaviour()
    (folder / "values").mkdir(parents=True, exist_ok=True)
    world = World(folder, name, 1, disk_bytes, shares)
    world.mover.pauses_s = (0.0,)
    return world


def cache(
    world: World, tokens: list[int], home: int = 0, identity: tuple[Any, bytes] = IDENTITIES[2]
) -> Node:
    """Compute and cache `tokens`, of the namespace whose keys move unless another is named."""
    slots = world.alloc(len(tokens))
    assert slots is not None
    world.compute(identity, tokens, slots, home)
    root = world.tree.root(*identity)
    return world.tree.insert(root, to_key(np.array(tokens)), slots, home).node


def test_a_tail_goes_to_host_memory_and_never_to_disk(tmp_path: Path) -> None:
    world = make_world(tmp_path, "tail")
    fact, tail = (cache(world, [1, 2, 3], identity=each) for each in (IDENTITIES[0], IDENTITIES[4]))
    assert tail.root.is_tail
    world.disk.note_used([fact, tail] * 2)
    world.disk.write_all()
    for slots in world.tree.tiers.evict(world.tree, DEVICE_TOKENS):
        world.free |= set(slots.tolist())
    world.check_at_rest()
    world.check()
    assert {*fact.copies} == {"host", "disk"}
    assert {*tail.copies} == {"host"}
    assert world.disk.tier.num_values == 1
    assert world.disk.num_waiting == 0
    world.disk.tier.close(5)


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("has_share", [True, False])
def test_the_disk_keeps_what_a_share_promises(
    tmp_path: Path, has_share: bool, is_gone: bool
) -> None:
    """Whether the tenant has asked since the server started or not."""
    shares = Shares({"salt": 0.4} if has_share else {"": 0.1}, 0.0, lambda n: n.tenant or "")
    world = make_world(tmp_path, f"share {has_share} {is_gone}", 6_000, shares)

    def to_disk(tenant: int, first: int) -> None:
        cache(world, [first, 1, 2], identity=IDENTITIES[tenant])
        world.disk.write_all()
        world.check_at_rest()
        for slots in world.tree.tiers.evict(world.tree, DEVICE_TOKENS):
            world.free |= set(slots.tolist())
        world.check_at_rest()
        assert world.host.make_room(HOST_TOKENS)
        world.check()

    def num_kept() -> int:
        root = world.tree.root(*IDENTITIES[1])
        paths = [to_key(np.array([first, 1, 2])) for first in (100, 101)]
        found = [world.tree.walk(root, path, only_resident=False)[0] for path in paths]
        return sum("disk" in node.copies for nodes in found for node in nodes)

    to_disk(1, 100)
    to_disk(1, 101)
    if is_gone:
        world.restart()
        world.mover.pauses_s = (0.0,)
        assert world.disk.found.num_values == 2
    else:
        assert num_kept() == 2
    for number in range(40):
        to_disk(0, 200 + number)
    assert world.disk.copies.evicted > 0
    assert (num_kept() == 2) == has_share
    world.check()
    world.disk.tier.close(5)


def test_slots_that_a_store_reads_are_not_given_away(tmp_path: Path) -> None:
    world = make_world(tmp_path, "hold")
    world.mover.pauses_s = (0.2,)
    node = cache(world, [1, 2, 3, 4])
    for slots in world.tree.tiers.evict(world.tree, 4):
        world.free |= set(slots.tolist())  # into the host, and from there to the disk
    assert "host" in node.copies and world.disk._stores
    free = world.mover.num_free
    world.tree.forget(node)
    world.tree.tiers.free_released()
    assert world.mover.num_free == free  # still being read
    world.check()
    world.check_at_rest()
    assert world.mover.num_free == HOST_TOKENS
    assert world.disk.copies.num_nodes == world.disk.tier.num_values == 0
    world.disk.tier.close(5)


def test_what_was_stored_of_another_position_is_thrown_away(tmp_path: Path) -> None:
    world = make_world(tmp_path, "home")
    world.mover.pauses_s = (0.2,)
    node = cache(world, [1, 2, 3], home=7)
    world.tree.lock([node])
    world.disk.write_all()  # by way of slots of its own
    assert world.disk._stores
    world.tree.unlock([node])
    world.host.mover.pauses_s = (0.0,)
    for slots in world.tree.tiers.evict(world.tree, 3):
        world.free |= set(slots.tolist())
    assert cache(world, [1, 2, 3], home=2) is node
    world.check_at_rest()
    assert node.home == 2
    assert "disk" not in node.copies or node.copies["disk"].home == 2
    world.check()
    world.disk.tier.close(5)


def test_values_that_overlap_are_hung_below_each_other(tmp_path: Path) -> None:
    """As when a deletion failed: what both have is taken from one."""
    world = make_world(tmp_path, "overlap")
    tier = world.disk.tier
    digest = world.disk._digest(*IDENTITIES[2])
    for tokens in ([1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 9], [8, 8]):
        rows = [world.row(IDENTITIES[2], tuple(tokens[: i + 1]), 5 + i) for i in range(len(tokens))]
        data = np.array([np.frombuffer(row, np.uint8) for row in rows])
        entry = Entry(digest, to_key(np.array(tokens)), len(tokens), 5)
        assert tier.store(entry, data) is not None
    lost = Entry(digest, to_key(np.array([7, 7, 7])), 1, 5)  # nothing leads to it
    assert tier.store(lost, data[:1]) is not None
    tier.drain(5)
    tier.close(5)
    world.start()
    root = world.tree.root(*IDENTITIES[2])
    paths = {tuple(to_tokens(node.key).tolist()): node for node in world.tree.nodes()}
    assert set(paths) == {(1, 2), (3,), (4, 5), (9,), (8, 8)}
    assert [paths[p].home for p in ((1, 2), (3,), (4, 5), (9,))] == [5, 7, 8, 7]
    table = SegmentTable.of_plain_prompt(np.array([1, 2, 3, 4, 5]), 5)
    found = match_segments(world.tree, root, table)
    assert world.disk.fetch(found.in_tiers[1]) == 5
    world.check_at_rest()
    world.check()  # every row is the right one
    assert world.host.copies.num_tokens == 5
    assert world.disk.tier.num_values == 4
    world.disk.tier.close(5)


def to_disk(world: World, tokens: list[int], home: int = 0) -> Node:
    """Cache `tokens` and bring them through every tier, until the disk alone has them."""
    node = cache(world, tokens, home)
    for slots in world.tree.tiers.evict(world.tree, len(tokens)):
        world.free |= set(slots.tolist())
    world.check_at_rest()
    world.host.make_room(HOST_TOKENS)
    assert node.slots is None and "host" not in node.copies and "disk" in node.copies
    return node


@pytest.mark.parametrize("is_front", [True, False])
def test_a_store_that_was_split_is_thrown_away_when_a_part_is_forgotten(
    tmp_path: Path, is_front: bool
) -> None:
    world = make_world(tmp_path, f"split store {is_front}")
    world.mover.pauses_s = (0.2,)
    node = cache(world, [1, 2, 3, 4])
    node.waiters = {"someone": None}  # so that the nodes stay when their KV is given up
    for slots in world.tree.tiers.evict(world.tree, 4):
        world.free |= set(slots.tolist())
    assert world.disk._stores
    front = world.tree.split(node, 2)
    assert "host" in front.copies
    world.disk.write_all()
    assert len(world.disk._stores) == 1  # the front is on its way already
    world.tree.forget(front if is_front else node)
    world.tree.tiers.free_released()
    world.check()
    world.check_at_rest()
    assert "disk" not in front.copies and "disk" not in node.copies
    assert world.disk.tier.num_values == 0
    assert ("host" not in front.copies) == is_front
    assert world.mover.num_free == HOST_TOKENS - (0 if is_front else 2)
    world.disk.tier.close(5)


def test_a_load_that_was_split_gives_both_parts_their_rows(tmp_path: Path) -> None:
    world = make_world(tmp_path, "split load")
    node = to_disk(world, [1, 2, 3, 4])
    world.mover.pauses_s = (0.2,)
    assert world.disk.fetch([node]) == 4
    front = world.tree.split(node, 3)
    assert world.disk.fetch([front, node], rid="r") == 4
    assert len(world.disk._loads) == 1
    assert not world.disk.is_ready("r")
    while not world.disk.is_ready("r"):
        world.wait()
    assert world.disk.waits.num_loaded("r") == 4
    assert "host" in front.copies and "host" in node.copies
    world.check()
    world.disk.release("r")
    world.check_at_rest()
    world.disk.tier.close(5)


def test_parts_of_a_value_that_proved_to_be_bad_are_given_up(tmp_path: Path) -> None:
    world = make_world(tmp_path, "bad part")
    node = to_disk(world, [1, 2, 3, 4])
    front = world.tree.split(node, 2)
    [file] = [path for path in (tmp_path / "values").rglob("*") if path.is_file()]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert world.disk.fetch([front, node]) == 4
    world.check_at_rest()
    assert "host" not in node.copies and "disk" not in node.copies and node.parent is None
    assert world.disk.fetch([front]) == 0
    assert "disk" not in front.copies and front.parent is None
    assert world.disk.copies.num_nodes == 0
    world.check()
    world.disk.tier.close(5)


def test_a_tier_that_was_turned_off_is_left_alone(tmp_path: Path) -> None:
    world = make_world(tmp_path, "turned off")
    node = to_disk(world, [1, 2, 3])
    other = cache(world, [5, 6])
    world.disk.turn_off("of a test")
    assert world.disk.is_off and world.disk.describe()["is_off"]
    assert world.disk.fetch([node]) == 0
    assert world.disk.write_all() == 0
    assert "disk" not in other.copies
    world.flush()  # as after new weights
    assert world.disk.copies.num_nodes == 0
    assert world.disk.tier.num_values == 1  # for a server with the weights of before
    world.disk.tier.close(5)


def test_a_new_process_knows_the_values_of_everyone_at_once(tmp_path: Path) -> None:
    world = make_world(tmp_path, "at once")
    to_disk(world, [1, 2, 3], home=5)
    world.disk.tier.close(5)
    world.start()
    assert [node.home for node in world.tree.nodes()] == [5]
    assert world.disk.copies.num_tokens == 3
    assert world.disk.found.num_values == 0
    world.check()
    world.disk.tier.close(5)
