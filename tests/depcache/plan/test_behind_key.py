# SPDX-License-Identifier: Apache-2.0
"""Keys of rows that stand behind several chunks: equal for equals only, and read back."""

from __future__ import annotations

from itertools import product

import numpy as np

from depcache.cache.node import TAIL_MARK
from depcache.cache.radix import to_key
from depcache.plan.behind_key import make_behind_key, read_behind_key
from depcache.plan.segments import SegmentTable
from depcache.prompt.forest import Forest


def ids(*tokens: int) -> bytes:
    return to_key(np.array(tokens, np.int64))


def test_a_key_is_read_back_and_no_two_are_alike() -> None:
    chunks = [ids(1), ids(1, 2), ids(2), ids(2, 1)]
    given = [
        (system, list(some))
        for system in (ids(), ids(1), ids(1, 1))
        for some in (*product(chunks, repeat=2), *product(chunks[:2], repeat=3))
    ]
    keys = [make_behind_key(*each) for each in given]
    assert len(set(keys)) == len(keys)
    assert [read_behind_key(key) for key in keys] == given
    assert not any(key.startswith(TAIL_MARK) for key in keys)


def test_other_keys_are_none() -> None:
    assert [read_behind_key(key) for key in (b"", TAIL_MARK, ids(0, 3, 4))] == [None] * 3


def test_a_row_to_read_and_a_row_to_store_have_one_key() -> None:
    """The prompt that has it computed holds the chunks, the one that reuses it names them."""
    one, two, row = [4, 5], [6, 7, 8], [9, 9, 4]
    stored = np.array([1, 2, 3, *one, *two, *row, 30])
    storing = SegmentTable.storing(stored, Forest.make(12, 3, [2, 3, 3], [-1] * 3))
    read = np.array([1, 2, 3, 20, *row, 30, 31])
    forest = Forest.make(9, 3, [1, 3], [-1, -1])
    nothing = np.empty(0, np.int64)
    behind = (None, (tuple(one), tuple(two)))
    reading = SegmentTable.make(read, forest, "sequential", nothing, behind)
    assert (
        storing.behind[3]
        == reading.behind[2]
        == make_behind_key(ids(1, 2, 3), [ids(*one), ids(*two)])
    )
    assert (storing.parents, reading.parents) == ([-1, 0, 0, -1], [-1, 0, -1])
    assert (storing.stored, reading.stored) == (8, None)
    assert storing.placed[3] == 8
