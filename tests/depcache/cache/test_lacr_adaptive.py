# SPDX-License-Identifier: Apache-2.0
"""The adaptive policy finds out by itself whether popularity lasts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from math import inf
from zlib import crc32

import numpy as np
import pytest

from depcache.cache import KVTree, make_policy
from depcache.cache.invariants import check_tree
from depcache.cache.radix import to_key

CAPACITY = 400
"""Tokens on the device; a request uses one run of four."""


def replay(tree: KVTree, requests: Iterator[int], num_requests: int) -> float:
    """Share of the requests that hit; the device is kept at its capacity."""
    num_hits = next_slot = 0
    for number, _ in zip(requests, range(num_requests), strict=False):
        key = to_key(np.array([number + 10, 1, 2, 3]))
        nodes, matched = tree.walk(tree.root(None), key)
        tree.lock(nodes)
        tree.touch(nodes)
        if matched:
            num_hits += 1
        else:
            tree.tiers.evict(tree, tree.num_tokens + 4 - CAPACITY)
            slots = next_slot + np.arange(4)
            next_slot += 4
            nodes = [tree.insert(tree.root(None), key, slots, 0).node]
            tree.lock(nodes)
        tree.unlock(nodes)
    check_tree(tree)
    return num_hits / num_requests


def lasting(rng: random.Random) -> Iterator[int]:
    """Ranks of a Zipf law that never changes."""
    weights = [1 / rank for rank in range(1, 2001)]
    while True:
        yield from rng.choices(range(2000), weights, k=1000)


def drifting(rng: random.Random) -> Iterator[int]:
    """A window of items that moves on: each is asked often for a while and never again."""
    start = 0
    while True:
        start += 1
        for _ in range(4):
            yield start + rng.randrange(90)


CASES = [(lasting, inf, "lfu"), (drifting, 16.0, "lru")]


@pytest.mark.parametrize(("make", "half_life", "best"), CASES)
def test_it_comes_to_the_half_life_that_fits(
    make: Callable[[random.Random], Iterator[int]], half_life: float, best: str
) -> None:
    adaptive = KVTree(make_policy("lacr_adaptive"))
    hit_rate = replay(adaptive, make(random.Random(1)), 20_000)
    assert adaptive.policy.half_life == half_life  # pyright: ignore[reportAttributeAccessIssue]
    rates = {
        name: replay(KVTree(make_policy(name)), make(random.Random(1)), 20_000)
        for name in ("lru", "lfu")
    }
    assert rates[best] == max(rates.values())
    assert hit_rate > max(rates.values()) - 0.02


def test_it_changes_its_mind_when_the_workload_does() -> None:
    tree = KVTree(make_policy("lacr_adaptive"))
    replay(tree, lasting(random.Random(1)), 20_000)
    assert tree.policy.half_life == inf  # pyright: ignore[reportAttributeAccessIssue]
    replay(tree, drifting(random.Random(2)), 40_000)
    assert tree.policy.half_life == 16.0  # pyright: ignore[reportAttributeAccessIssue]


def test_a_split_node_keeps_the_hash_of_its_path() -> None:
    """Ranks of one model must sample the same nodes, however each came to split them."""
    tree = KVTree(make_policy("lacr_adaptive"))
    key = to_key(np.array([1, 2, 3, 4]))
    lower = tree.insert(tree.root(None), key, np.arange(4), 0).node
    upper = tree.split(lower, 3)
    assert upper.path_hash == crc32(key[:12])
    assert lower.path_hash == crc32(key)
