# SPDX-License-Identifier: Apache-2.0
"""The oracle itself, against masks written down by hand."""

from __future__ import annotations

import dataclasses

import numpy as np

from flashinfer_masks import Step, dense_mask
from tests.flashinfer_masks.make import make_step, make_structure


def picture(mask: np.ndarray) -> list[str]:
    return ["".join("#" if seen else "." for seen in row) for row in mask]


def test_mask_of_a_forest_in_pre_order() -> None:
    structure = make_structure(1, [(-1, 1), (0, 1), (0, 2), (-1, 1)], task_len=2)
    assert picture(dense_mask(make_step(structure, [], 0, 8))) == [
        "#.......",
        "##......",
        "###.....",
        "##.#....",
        "##.##...",
        "#....#..",
        "#######.",
        "########",
    ]


def test_mask_of_shuffled_hits_has_one_row_per_new_token() -> None:
    structure = make_structure(1, [(-1, 1), (0, 1), (0, 2), (-1, 1)], task_len=2)
    # Rows: second tree, root of the first, system, first child | second child, task.
    step = make_step(structure, [5, 1, 0, 2], 0, 4)
    assert picture(dense_mask(step)) == [
        ".##.#...",
        ".##.##..",
        "#######.",
        "########",
    ]


def test_mask_of_generated_rows_is_causal() -> None:
    structure = make_structure(0, [(-1, 1), (-1, 1)], task_len=1)
    assert picture(dense_mask(make_step(structure, [1, 0], 0, 3))) == ["###..", "####.", "#####"]


def test_oracle_ignores_what_the_structure_derives() -> None:
    structure = make_structure(1, [(-1, 2), (0, 1), (0, 1)], task_len=1)
    zeros = np.zeros(structure.num_tokens, np.int64)
    broken = dataclasses.replace(
        structure, ends=zeros, starts=zeros, subtree_stops=zeros, node_depths=zeros
    )
    step = make_step(structure, [0], 0, 5)
    broken_step = Step(broken, step.order, 1, 5)
    np.testing.assert_array_equal(dense_mask(step), dense_mask(broken_step))
