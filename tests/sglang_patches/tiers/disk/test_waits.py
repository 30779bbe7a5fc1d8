# SPDX-License-Identifier: Apache-2.0
"""A request waits for its values until they are there or computing is faster; then it lets go."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from depcache.cache import KVTree, Node
from depcache.cache.radix import to_key
from sglang_patches.tiers.bandwidth import Bandwidth
from sglang_patches.tiers.disk.waits import SHARE, UNKNOWN_WAIT_S, DiskWaits
from sglang_patches.tiers.host.residency import HostResidency
from sglang_patches.tiers.host.tier import HostTier
from tests.sglang_patches.tiers.disk.make import Clock, bits, make_pool

pytestmark = pytest.mark.sglang

NUM_HOST = 16


class Kept(NamedTuple):
    """A request's waits, the host tier behind them, and one node of 4 tokens that it holds."""

    waits: DiskWaits
    clock: Clock
    host: HostResidency
    node: Node


@pytest.fixture
def kept() -> Kept:
    pool = make_pool(num_tokens=NUM_HOST)
    num_bytes = bits(pool, np.array([1])).shape[1]
    tree = KVTree()
    host = HostResidency(tree, HostTier(pool, NUM_HOST * num_bytes), Bandwidth(num_bytes))
    tree.tiers.append(host)
    node = tree.insert(tree.root(None), to_key(np.arange(4)), np.arange(1, 5), 0).node
    tree.tiers.evict(tree, 4)
    clock = Clock()
    return Kept(DiskWaits(host, clock), clock, host, node)


def test_it_waits_for_the_last_transfer_and_what_came_is_counted(kept: Kept) -> None:
    kept.waits.begin("a", ["first", "second"], [], 8, 100.0)
    kept.waits.note_end("first", [kept.node])
    assert not kept.waits.is_ready("a") and kept.waits.num_loaded("a") == 4
    kept.waits.note_end("second", [])  # it failed
    assert kept.waits.is_ready("a") and kept.waits.num_loaded("a") == 4


def test_its_time_begins_when_it_could_have_run(kept: Kept) -> None:
    kept.waits.begin("a", ["first"], [], 8, 5.0)
    kept.clock.now = 1000.0
    assert not kept.waits.is_ready("a")
    kept.clock.now += 5.0
    assert not kept.waits.is_ready("a")
    kept.clock.now += 0.1
    assert kept.waits.is_ready("a"), "computing would have been faster"


def test_what_is_computed_meanwhile_hides_a_wait(kept: Kept) -> None:
    waits, clock = kept.waits, kept.clock
    waits.begin("a", ["first", "second"], [], 8, 100.0)
    waits.begin("b", ["second"], [], 8, 100.0)
    clock.now += 3.0
    waits.note_pass(is_idle=True)  # nobody has asked yet whether they may run
    assert not waits.is_ready("a")
    clock.now += 2.0
    waits.note_pass(is_idle=True)
    assert waits.wait_s == 2.0
    assert not waits.is_ready("a")
    clock.now += 40.0
    waits.note_pass(is_idle=False)  # another request was computed
    waits.note_end("first", [])
    assert not waits.is_ready("a") and not waits.is_ready("b")
    clock.now += 1.0
    waits.note_pass(is_idle=True)
    waits.note_end("second", [])
    assert waits.wait_s == 4.0  # one second of each
    clock.now += 50.0
    waits.note_pass(is_idle=True)
    assert waits.is_ready("a") and waits.is_ready("b")
    waits.release("a")
    waits.release("b")
    assert (waits.fetch_s, waits.wait_s) == (92.0, 4.0)


def test_who_has_nothing_to_fetch_or_gives_up_is_counted_as_far_as_it_waited(kept: Kept) -> None:
    waits, clock = kept.waits, kept.clock
    waits.begin("nothing to fetch", [], [], 8, 100.0)
    waits.begin("gives up", ["first"], [], 8, 4.0)
    assert not waits.is_ready("gives up")
    clock.now += 6.0
    waits.note_pass(is_idle=True)
    assert waits.is_ready("gives up")
    waits.release("gives up")
    waits.release("nothing to fetch")
    assert (waits.fetch_s, waits.wait_s) == (6.0, 6.0)


def test_where_nobody_knows_how_long_computing_takes_it_waits_a_fixed_time(kept: Kept) -> None:
    kept.waits.begin("a", ["first"], [], 8, None)
    assert not kept.waits.is_ready("a")
    kept.clock.now = UNKNOWN_WAIT_S + 0.1
    assert kept.waits.is_ready("a")


def test_what_came_stays_in_host_memory_until_the_request_lets_go(kept: Kept) -> None:
    kept.waits.begin("a", ["first"], [], 4, 5.0)
    kept.waits.note_end("first", [kept.node])
    assert not kept.host.make_room(NUM_HOST)
    assert kept.host.copies.num_nodes == 1
    kept.waits.release("a")
    assert kept.host.make_room(NUM_HOST)
    assert kept.host.copies.num_nodes == 0
    kept.waits.release("a")  # twice is harmless


def test_requests_that_wait_may_keep_a_share_of_the_host(kept: Kept) -> None:
    room = int(NUM_HOST * SHARE)
    assert kept.waits.has_room(room) and not kept.waits.has_room(room + 1)
    kept.waits.begin("a", ["first"], [], room, 5.0)
    assert len(kept.waits) == 1 and not kept.waits.has_room(1)
    kept.waits.release("a")
    assert len(kept.waits) == 0 and kept.waits.has_room(room)


def test_who_waits_for_nothing_is_ready(kept: Kept) -> None:
    assert kept.waits.is_ready("nobody") and not kept.waits.is_open("nobody")
    assert kept.waits.num_loaded("nobody") == 0
