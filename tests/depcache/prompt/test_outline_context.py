# SPDX-License-Identifier: Apache-2.0
"""Elements become rows, and rows become segments as the outline says."""

from __future__ import annotations

import pytest

from depcache.prompt.outline import Outline
from depcache.prompt.outline_context import hang, join_elements

ROWS = [[5, 1], [5, 2], [7]]
SHAPE = {"start": 0, "lens": (1, 1, 1), "rows": (1, 1, 1)}


def test_elements_follow_one_another_and_single_ones_are_closed() -> None:
    elements = [(1, 2), (3,), (4,), (5,)]
    assert join_elements(elements, (2, 1, 1), [9]) == [[1, 2, 3], [4, 9], [5, 9]]
    assert join_elements(elements, (1, 3), []) == [[1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("said", "lens", "parents", "joins"),
    [
        ({}, [2, 2, 1], [-1, -1, -1], {}),
        ({"parents": (-1, 0, 0)}, [2, 2, 1], [-1, 0, 0], {}),
        ({"merge": True}, [1, 1, 1, 1], [-1, 0, 0, -1], {}),
        ({"sees": ((), (0,), ())}, [2, 2, 1], [-1, 0, -1], {}),
        ({"sees": ((), (), (0, 1))}, [2, 2, 1], [-1, -1, -1], {2: [0, 1]}),
        ({"sees": ((), (), (0, 1)), "merge": True}, [1, 1, 1, 1], [-1, 0, 0, -1], {3: [1, 2]}),
    ],
)
def test_the_outline_says_how_rows_hang_together(said, lens, parents, joins) -> None:
    (tokens, found_lens, found_parents), found_joins = hang(ROWS, Outline(**SHAPE, **said))
    assert (found_lens, found_parents, found_joins) == (lens, parents, joins)
    assert len(tokens) == sum(lens)
