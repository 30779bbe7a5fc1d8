# SPDX-License-Identifier: Apache-2.0
"""The plan `custom_mask`: its array is the oracle's; `causal_mask` for its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from flashinfer_masks import Step, causal_mask, dense_mask, plan_masked
from tests.flashinfer_masks.make import make_step, make_structure, steps


@settings(max_examples=300, deadline=None)
@given(step=steps())
def test_mask_is_the_oracles(step: Step) -> None:
    mask = plan_masked(step).mask
    assert mask.dtype == bool
    assert mask.flags.c_contiguous
    np.testing.assert_array_equal(mask, dense_mask(step))


@pytest.mark.parametrize("num_segments", [50, 1000])
def test_mask_is_the_oracles_across_blocks_of_queries(num_segments: int) -> None:
    parents = [-1 if segment % 5 == 0 else segment - segment % 5 for segment in range(num_segments)]
    structure = make_structure(3, [(parent, 3) for parent in parents], task_len=2)
    step = make_step(structure, [], 0, 153)
    np.testing.assert_array_equal(plan_masked(step).mask, dense_mask(step))


def test_mask_is_the_oracles_where_an_index_needs_more_than_16_bits() -> None:
    structure = make_structure(65_530, [(-1, 4), (0, 3), (0, 3), (-1, 2)], task_len=2)
    step = make_step(structure, list(range(65_530)), 0, 14)
    np.testing.assert_array_equal(plan_masked(step).mask, dense_mask(step))


def test_causal_mask_is_aligned_to_the_bottom_right() -> None:
    assert causal_mask(2, 4).tolist() == [[True, True, True, False], [True] * 4]
    assert causal_mask(0, 4).shape == (0, 4)
