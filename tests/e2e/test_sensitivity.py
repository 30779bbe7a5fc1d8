# SPDX-License-Identifier: Apache-2.0
"""Controls: with these models a wrong mask or position is seen, so that a pass means something."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.models import MODELS
from tests.helpers.prompts import LAYOUTS, TreePrompt, random_forest, random_tokens
from tests.helpers.tolerance import ORACLE_LOGPROB, SENSITIVE_LOGPROB

pytestmark = pytest.mark.sglang  # for transformers, which comes with it

every_model = pytest.mark.parametrize("model", MODELS)


def make_prompts() -> dict[str, TreePrompt]:
    """The same prompt in each layout."""
    rng = random.Random(1)
    parts = random_tokens(rng, 12), random_forest(rng, 5), random_tokens(rng, 9)
    return {layout: TreePrompt(*parts, layout) for layout in LAYOUTS}


def make_shift_oracle(oracle: Any) -> Any:
    from tests.helpers.oracle import ShiftOracle

    return ShiftOracle(oracle)


def distance(left: Any, right: Any) -> float:
    return float((left - right).abs().max())


@every_model
def test_a_causal_mask_instead_of_the_dependencies_is_seen(
    model: str, oracle_of: Callable[[str], Any]
) -> None:
    oracle = oracle_of(model)
    for prompt in make_prompts().values():
        right = oracle.score(prompt, [0])
        assert distance(right, oracle.score_causal(prompt)) > SENSITIVE_LOGPROB


@every_model
def test_positions_of_another_layout_are_seen(model: str, oracle_of: Callable[[str], Any]) -> None:
    scores = {layout: oracle_of(model).score(p, [0]) for layout, p in make_prompts().items()}
    assert distance(scores["tree"], scores["staggered"]) > SENSITIVE_LOGPROB
    assert distance(scores["tree"], scores["sequential"]) > SENSITIVE_LOGPROB
    assert distance(scores["staggered"], scores["sequential"]) > SENSITIVE_LOGPROB


@every_model
def test_keys_that_were_not_moved_are_seen(model: str, oracle_of: Callable[[str], Any]) -> None:
    """What a shifting cache computes behind a system is no recompute, so it needs its oracle."""
    for layout in ("staggered", "sequential"):
        prompt = make_prompts()[layout]
        swapped = TreePrompt(prompt.system, prompt.trees[::-1], prompt.task, layout)
        shifts = make_shift_oracle(oracle_of(model))
        shifts.score(prompt, [0])
        moved, reuse = shifts.score(swapped, [0])
        assert reuse.shifted
        assert distance(moved, oracle_of(model).score(swapped, [0])) > SENSITIVE_LOGPROB
        shifts.inv_freq = 0 * shifts.inv_freq  # keys copied as they are
        still, _ = shifts.score(swapped, [0])
        assert distance(moved, still) > SENSITIVE_LOGPROB


@every_model
def test_the_shift_oracle_is_the_oracle_where_distances_stay(
    model: str, oracle_of: Callable[[str], Any]
) -> None:
    """Without a system, a whole tree moves as one: nothing is approximate."""
    oracle = oracle_of(model)
    for layout, prompt in make_prompts().items():
        shifts = make_shift_oracle(oracle)
        shifts.score(TreePrompt([], prompt.trees, prompt.task, layout), [0])
        swapped = TreePrompt([], prompt.trees[::-1], prompt.task, layout)
        moved, reuse = shifts.score(swapped, [7, 8, 9])
        assert reuse.missed == 0
        assert bool(reuse.shifted) == (layout != "tree")
        assert distance(moved, oracle.score(swapped, [7, 8, 9])) < ORACLE_LOGPROB
