# SPDX-License-Identifier: Apache-2.0
"""Ticks become times, coarsely and in bounded room; evicted nodes become ages."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depcache.cache import KVTree, TierCopies
from depcache.cache.radix import to_key
from sglang_patches.observe.idle_ages import COARSENESS, MAX_ENTRIES, STEP_S, IdleAges, TickClock
from tests.helpers.keeper import Keeper


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.floats(0, 3), min_size=1, max_size=60))
def test_a_tick_is_never_younger_than_it_is_and_at_most_a_step_older(pauses: list[float]) -> None:
    hands = Hands()
    clock = TickClock(hands)
    times = {0: hands.now}
    for tick, pause in enumerate(pauses, start=1):
        hands.now += pause
        clock.note(tick)
        times[tick] = hands.now
    hands.now += 5
    for tick, moment in times.items():
        true = hands.now - moment
        assert true - 1e-6 <= clock.seconds_since(tick) <= true + STEP_S + 1e-6


def test_a_long_pause_is_not_laid_on_the_ticks_behind_it() -> None:
    hands = Hands()
    clock = TickClock(hands)
    hands.now += 3600
    for tick in range(1, 20):
        clock.note(tick)
    assert clock.seconds_since(10) == 0


def test_the_clock_is_bounded_and_old_ticks_are_known_to_a_fraction_of_their_age() -> None:
    hands = Hands()
    clock = TickClock(hands)
    rng = random.Random(3)
    times = [hands.now]
    for tick in range(1, 60_000):  # mostly busy, with pauses of up to ten minutes
        hands.now += rng.choice([0.01, 0.1, 1, 1, 1, 20 if rng.random() < 0.98 else 600])
        clock.note(tick)
        times.append(hands.now)
        assert len(clock) <= MAX_ENTRIES
    assert hands.now > 2 * 24 * 3600
    for tick in range(0, len(times), 97):
        age = hands.now - times[tick]
        told = clock.seconds_since(tick)
        assert age - 1e-6 <= told <= age + max(STEP_S, COARSENESS * age) + 1e-6


def make_tree(hands: Hands) -> tuple[KVTree, IdleAges]:
    ages = IdleAges(TickClock(hands))
    return KVTree(watcher=ages), ages


def add(tree: KVTree, first: int, num_tokens: int) -> None:
    tokens = np.arange(first, first + num_tokens)
    tree.insert(tree.root("r"), to_key(tokens), tokens, 0)


def test_an_evicted_node_has_the_age_of_its_last_use() -> None:
    hands = Hands()
    tree, ages = make_tree(hands)
    add(tree, 0, 4)
    hands.now += 10
    add(tree, 100, 4)
    hands.now += 10
    used, _ = tree.walk(tree.root("r"), to_key(np.arange(4)))
    tree.lock(used)
    tree.touch(used)
    tree.unlock(used)
    hands.now += 5
    assert ages.describe("device") is None
    tree.tiers.evict(tree, 1)  # the second node, 15 s old
    assert ages.describe("device") == pytest.approx({"mean_s": 15, "last_s": 15}, abs=STEP_S)
    tree.tiers.evict(tree, 1)
    assert ages.describe("device") == pytest.approx({"mean_s": 15, "last_s": 5}, abs=0.2)


def test_the_mean_follows_the_tokens() -> None:
    hands = Hands()
    tree, ages = make_tree(hands)
    add(tree, 0, 1)
    hands.now += 100
    tree.tiers.evict(tree, 1)
    for number in range(30):
        add(tree, 1000 + 3000 * number, 3000)
        hands.now += 2
        tree.tiers.evict(tree, 1)
    told = ages.describe("device")
    assert told is not None
    assert told["mean_s"] == pytest.approx(2, abs=0.2)


def test_tiers_have_ages_of_their_own() -> None:
    hands = Hands()
    tree, ages = make_tree(hands)
    copies = TierCopies(tree, "host")
    tree.tiers.append(Keeper(copies, lambda victims: [copies.add(*each) for each in victims]))
    add(tree, 0, 4)
    hands.now += 7
    tree.tiers.evict(tree, 4)
    assert ages.describe("host") is None
    hands.now += 20
    copies.evict_one()
    assert ages.describe("device") == pytest.approx({"mean_s": 7, "last_s": 7}, abs=STEP_S)
    assert ages.describe("host") == pytest.approx({"mean_s": 27, "last_s": 27}, abs=STEP_S)
    assert copies.evicted_nodes == 1
