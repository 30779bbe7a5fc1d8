# SPDX-License-Identifier: Apache-2.0
"""The oracle's mask and positions are those of the nested trees that a prompt was made of."""

from __future__ import annotations

import random

import numpy as np
import pytest

from eval.soak.prompts import LAYOUTS
from tests.helpers.prompts import TreePrompt, random_forest, random_tokens


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("system_len", [0, 1, 5])
def test_mask_and_positions_are_those_of_the_nested_trees(layout: str, system_len: int) -> None:
    pytest.importorskip("torch")
    from eval.soak.oracle import dense_mask, positions

    rng = random.Random(f"{layout}{system_len}")
    for _ in range(20):
        trees = random_forest(rng, 4)
        prompt = TreePrompt(random_tokens(rng, system_len), trees, random_tokens(rng, 3), layout)
        structure = prompt.params()
        assert (dense_mask(prompt.num_tokens, structure, 2) == prompt.mask(2)).all()
        assert (positions(prompt.num_tokens, structure, 2) == prompt.positions_with(2)).all()


def test_a_plain_prompt_is_causal_and_in_order() -> None:
    pytest.importorskip("torch")
    from eval.soak.oracle import dense_mask, positions

    assert (dense_mask(3, None, 1) == np.tri(4, dtype=bool)).all()
    assert positions(3, None, 1).tolist() == [0, 1, 2, 3]
