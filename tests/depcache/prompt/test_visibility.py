# SPDX-License-Identifier: Apache-2.0
"""One integer per token says the same as the dense mask and as the definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from depcache.prompt.forest import Forest
from flashinfer_masks import visible_ref
from tests.depcache.prompt.make import forests


@given(forests())
def test_the_intervals_equal_the_dense_mask(forest: Forest):
    index = np.arange(forest.num_tokens)
    i, j = index[:, None], index[None, :]
    visible = (j <= i) & ((i < forest.structure.ends[None, :]) | (i >= forest.task_start))
    assert np.array_equal(visible, visible_ref(forest.structure))


def test_a_token_sees_the_system_its_ancestors_and_itself_and_the_task_sees_all():
    #                   s | a a | b | c | d | t
    forest = Forest.make(7, 1, [2, 1, 1, 1], [-1, 0, 0, -1])
    expected = ["s......", "sa.....", "saa....", "saab...", "saa.c..", "s....d.", "saabcdt"]
    seen = [
        "".join("saabcdt"[j] if row[j] else "." for j in range(7))
        for row in visible_ref(forest.structure)
    ]
    assert seen == expected


def test_system_and_task_tokens_are_seen_to_the_end():
    ends = Forest.make(7, 1, [2, 1, 1, 1], [-1, 0, 0, -1]).structure.ends
    assert ends.tolist() == [7, 5, 5, 4, 5, 6, 7]
    assert ends.dtype == np.int64
