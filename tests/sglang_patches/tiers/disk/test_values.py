# SPDX-License-Identifier: Apache-2.0
"""What is in the storage, whose it is, and what ours take of the limit."""

from __future__ import annotations

import dataclasses

import pytest

from sglang_patches.tiers.disk.checked import room_bytes
from sglang_patches.tiers.disk.manifest import Known
from sglang_patches.tiers.disk.value import make_ref
from sglang_patches.tiers.disk.values import Heard, Values
from tests.sglang_patches.tiers.disk.make import MARK, make_entry

pytestmark = pytest.mark.sglang

OURS = Known(b"o" * 20, make_entry(MARK, [1, 2], 1), 500)
THEIRS = Known(b"t" * 20, make_entry(MARK, [1, 3], 1), 400, is_ours=False)


def test_only_ours_take_of_the_limit() -> None:
    values = Values([OURS, THEIRS])
    assert len(values) == 2
    assert values.used_bytes == room_bytes(500, 2)


def test_what_neighbours_store_is_new_once_and_goes_when_they_remove_it() -> None:
    values = Values([OURS])
    heard = values.hear([(THEIRS.key, THEIRS)], set())
    assert heard == Heard([(THEIRS.entry, make_ref(THEIRS.key, THEIRS.entry))])
    assert values.hear([(THEIRS.key, THEIRS)], set()) == Heard([])
    assert values.hear([(THEIRS.key, None), (OURS.key, None)], set()) == Heard([], num_removed=1)
    assert list(values) == [OURS.key]  # ours is ours, whatever they say of it


def test_what_we_are_about_to_store_is_not_taken_from_a_neighbour() -> None:
    values = Values([])
    assert values.hear([(THEIRS.key, THEIRS)], {THEIRS.key}) == Heard([])
    assert not values


def test_what_is_inherited_takes_of_the_limit_from_then_on_and_once() -> None:
    values = Values([THEIRS])
    values[THEIRS.key].live = 0  # refs to it were given up
    inherited = dataclasses.replace(THEIRS, is_ours=True)
    for _ in range(2):
        assert values.hear([(THEIRS.key, inherited)], set()) == Heard([], num_inherited=1)
        assert values.used_bytes == values[THEIRS.key].room == room_bytes(400, 2)
    assert values[THEIRS.key].live == 0
