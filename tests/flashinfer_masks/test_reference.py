# SPDX-License-Identifier: Apache-2.0
"""The executor itself: softmax by the book, merging, and that it notices a wrong plan."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from flashinfer_masks import (
    MaskedPlan,
    SegmentsPlan,
    Step,
    causal_mask,
    plan_cascade,
    plan_masked,
    plan_segments,
)
from flashinfer_masks.reference import attend, count_pairs, count_work, merge_states, run_plan
from tests.flashinfer_masks.make import (
    assert_plan_is_exact,
    make_qkv,
    make_step,
    make_structure,
)


def make_small_step() -> Step:
    structure = make_structure(2, [(-1, 2), (0, 1), (0, 2), (-1, 1)], task_len=2)
    return make_step(structure, [1, 0], 0, 8)


def test_attend_is_softmax_of_scaled_scores() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((num_tokens, 1, 4)) for num_tokens in (2, 3, 3))
    mask = np.array([[True, False, True], [True, True, True]])
    out, lse = attend(q, k, v, mask)
    for query in range(2):
        keys = np.flatnonzero(mask[query])
        weights = [np.exp(q[query, 0] @ k[key, 0] / 2.0) for key in keys]
        expected = sum(w * v[key, 0] for w, key in zip(weights, keys, strict=True)) / sum(weights)
        np.testing.assert_allclose(out[query, 0], expected, atol=1e-14)
        np.testing.assert_allclose(lse[query, 0], np.log(sum(weights)), atol=1e-14)


def test_large_scores_do_not_overflow() -> None:
    q = np.full((1, 1, 1), 1e4)
    k = np.array([1.0, -1.0]).reshape(2, 1, 1)
    out, lse = attend(q, k, k, np.ones((1, 2), bool))
    assert (out.item(), lse.item()) == (1.0, 1e4)


def test_merging_two_sets_of_keys_is_attention_over_both() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((num_tokens, 2, 4)) for num_tokens in (3, 7, 7))
    every = np.ones((3, 7), bool)
    expected, _ = attend(q, k, v, every)
    first = attend(q, k[:2], v[:2], every[:, :2])
    second = attend(q, k[2:], v[2:], every[:, 2:])
    np.testing.assert_allclose(merge_states(*first, *second), expected, atol=1e-14)


def test_a_plan_that_misses_or_repeats_a_pair_is_noticed() -> None:
    step = make_small_step()
    mask = plan_masked(step).mask
    mask[3, 0] = ~mask[3, 0]
    with pytest.raises(AssertionError):
        assert_plan_is_exact(MaskedPlan(mask), step)

    plan = plan_segments(step)
    kv_rows = plan.kv_rows.copy()
    kv_rows[0] = kv_rows[1]
    broken = SegmentsPlan(plan.q_indptr, plan.kv_indptr, kv_rows)
    assert count_pairs(broken, step.num_new, step.num_rows).max() == 2
    with pytest.raises(AssertionError):
        assert_plan_is_exact(broken, step)

    cascade = plan_cascade(step)
    with pytest.raises(AssertionError):
        assert_plan_is_exact(dataclasses.replace(cascade, key_stops=cascade.key_stops - 1), step)
    with pytest.raises(AssertionError):  # level 0 twice
        assert_plan_is_exact(dataclasses.replace(cascade, masked=cascade.system), step)


def test_rows_that_no_request_computes_are_nan() -> None:
    step = make_small_step()
    plan = plan_segments(step)
    first_only = SegmentsPlan(plan.q_indptr[:2], plan.kv_indptr[:2], plan.kv_rows)
    out = run_plan(first_only, *make_qkv(step))
    assert not np.isnan(out[: plan.q_indptr[1]]).any()
    assert np.isnan(out[plan.q_indptr[1] :]).all()


def test_work_is_the_area_of_the_requests() -> None:
    step = make_small_step()
    assert count_work(MaskedPlan(causal_mask(3, 5))) == 15
    # A plan without masks has no area to waste.
    assert count_work(plan_segments(step)) == plan_masked(step).mask.sum()
    # The mask of the first tree hides that segment 1 is not above segment 2, and the future.
    assert count_work(plan_cascade(step)) == plan_masked(step).mask.sum() + 10 + 2
