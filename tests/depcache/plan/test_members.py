# SPDX-License-Identifier: Apache-2.0
"""The rows that members get, and the numbers of set bits."""

from __future__ import annotations

import pytest

from depcache.plan.members import bits
from depcache.plan.pieces import Pieces
from depcache.plan.sharing import Sharing
from tests.helpers.orders import table_of


@pytest.mark.parametrize(("kind", "own"), [(Sharing, 15), (Pieces, 2)])
def test_the_matrix_grows_and_a_row_is_given_again(kind: type[Sharing | Pieces], own: int) -> None:
    members = kind()
    rows = [members.add(None, table_of(1)) for _ in range(40)]
    assert len(set(rows)) == 40
    assert (members.shared[rows][:, rows] == own).all()
    members.remove(rows[7])
    assert not members.shared[rows[7]].any()
    assert members.add(None, table_of(2)) == rows[7]
    assert members.shared[rows[7], rows[7]] == own


def test_bits_are_the_numbers_of_those_set() -> None:
    assert list(bits(0)) == []
    assert list(bits(1 | 1 << 5 | 1 << 200)) == [0, 5, 200]
