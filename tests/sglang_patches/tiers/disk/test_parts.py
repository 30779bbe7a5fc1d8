# SPDX-License-Identifier: Apache-2.0
"""Ranks that hear of values each at a time of its own come to the same, in the same order."""

from __future__ import annotations

import random

import pytest

from sglang_patches.tiers.disk.checked import room_bytes
from sglang_patches.tiers.disk.manifest import Known
from sglang_patches.tiers.disk.neighbours import Change
from sglang_patches.tiers.disk.parts import AT_ONCE, Parts, name_of
from tests.sglang_patches.tiers.disk.make import make_entry, make_print

pytestmark = pytest.mark.sglang

NUM_RANKS = 3
ENTRIES = [make_entry(make_print(), [at, at + 1, at + 2], 2) for at in range(20)]


def make_known(rank: int, at: int, *, is_ours: bool = False) -> Known:
    return Known(key_of(rank, at), ENTRIES[at], 1000, is_ours)


def key_of(rank: int, at: int) -> bytes:
    """Keys name the rank."""
    return bytes([rank, at])


def make_parts() -> list[Parts]:
    return [Parts(rank, NUM_RANKS) for rank in range(NUM_RANKS)]


def exchange(ranks: list[Parts]) -> list[list[Change]]:
    told = [each.tell() for each in ranks]
    return [each.follow(told) for each in ranks]


def as_one(changes: list[list[Change]]) -> list[tuple[int, bool | None]]:
    """What changes for every rank: entry and whether it is ours, None where it is gone."""
    for rank, mine in enumerate(changes):
        assert all(key[0] == rank for key, _ in mine)
        assert all(known is None or known.key == key for key, known in mine)
    plain = [[(key[1], known and known.is_ours) for key, known in mine] for mine in changes]
    assert all(each == plain[0] for each in plain)
    return plain[0]


def test_a_value_is_there_when_the_last_rank_has_heard_of_it() -> None:
    ranks = make_parts()
    for rank, parts in enumerate(ranks):
        parts.hear([(key_of(rank, 7), make_known(rank, 7))])
        found = as_one(exchange(ranks))
        assert found == ([] if rank < NUM_RANKS - 1 else [(7, False)])
    ranks[1].hear([(key_of(1, 7), None)])
    assert as_one(exchange(ranks)) == [(7, None)]
    ranks[1].hear([(key_of(1, 7), make_known(1, 7))])
    assert as_one(exchange(ranks)) == [(7, False)]


def test_a_value_is_ours_when_all_ranks_have_taken_it_over() -> None:
    ranks = make_parts()
    for rank, parts in enumerate(ranks):
        parts.hear([(key_of(rank, 1), make_known(rank, 1))])
    exchange(ranks)
    room = room_bytes(1000, ENTRIES[1].num_path)
    for rank, parts in enumerate(ranks):
        parts.hear([(key_of(rank, 1), make_known(rank, 1, is_ours=True))])
        assert parts.inherited_bytes == room
        is_last = rank == NUM_RANKS - 1
        assert as_one(exchange(ranks)) == [(1, is_last)]
    assert [parts.inherited_bytes for parts in ranks] == [0] * NUM_RANKS
    assert [len(parts) for parts in ranks] == [0] * NUM_RANKS


def test_what_was_there_at_the_start_is_not_told_again() -> None:
    ranks = make_parts()
    told = [[name_of(ENTRIES[at]) for at in (0, 1)], [name_of(ENTRIES[0])], [name_of(ENTRIES[0])]]
    for rank, parts in enumerate(ranks):
        mine = [make_known(rank, at) for at in range(len(told[rank]))]
        parts.begin(mine, told)
        parts.hear([(known.key, known) for known in mine])
        assert parts.num_news == 0
    for rank in (1, 2):
        ranks[rank].hear([(key_of(rank, 1), make_known(rank, 1))])
    assert as_one(exchange(ranks)) == [(1, False)]
    ranks[2].hear([(key_of(2, 0), None)])
    assert as_one(exchange(ranks)) == [(0, None)]


def test_no_more_than_so_many_changes_are_told_at_once() -> None:
    parts = Parts(0, 1)
    changes: list[Change] = []
    for at in range(AT_ONCE + 5):
        known = make_known(0, at % len(ENTRIES), is_ours=True)
        changes.append((known.key, known))
    parts.hear(changes)
    assert len(parts.follow([parts.tell()])) == AT_ONCE
    assert parts.num_news == 5
    assert len(parts.follow([parts.tell()])) == 5
    assert parts.tell() == b""


@pytest.mark.parametrize("seed", range(20))
def test_what_all_ranks_have_is_known_to_all(seed: int) -> None:
    rng = random.Random(seed)
    ranks = make_parts()
    have: list[set[int]] = [set() for _ in ranks]
    known: set[int] = set()

    def follow() -> None:
        for at, is_ours in as_one(exchange(ranks)):
            (known.discard if is_ours is None else known.add)(at)

    for _ in range(300):
        rank, at = rng.randrange(NUM_RANKS), rng.randrange(len(ENTRIES))
        is_gone = at in have[rank] and rng.random() < 0.3
        (have[rank].discard if is_gone else have[rank].add)(at)
        ranks[rank].hear([(key_of(rank, at), None if is_gone else make_known(rank, at))])
        if rng.random() < 0.3:
            follow()
    follow()
    assert known == set.intersection(*have)
    assert all(len(parts) == len(set.union(*have)) for parts in ranks)
