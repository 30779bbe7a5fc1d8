# SPDX-License-Identifier: Apache-2.0
"""`eval.micro.mask_plans` runs, on prompts whose plans are exact."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from eval.micro.mask_plans import CASES, Case, make_step, measure
from flashinfer_masks import PLANS
from tests.flashinfer_masks.make import assert_plan_is_exact


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_plans_of_a_small_version_of_each_case_are_exact(case: Case) -> None:
    small = dataclasses.replace(case, num_trees=2, num_paths=4, system_len=5, task_len=3)
    step = make_step(small, np.random.default_rng(0))
    for plan in PLANS.values():
        assert_plan_is_exact(plan(step), step)


def test_measured_row_has_sizes_times_and_work() -> None:
    row = measure(Case("small", num_trees=2, num_paths=4), seed=0, num_repeats=1)
    assert row["num_new"] == row["num_tokens"]
    assert row["segments_ms"] > 0
    assert row["segments_mega_scores"] < row["cascade_mega_scores"] < row["masked_mega_scores"]
