# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 of Cache-Craft against examples worked out by hand."""

from __future__ import annotations

import numpy as np

from depcache.select.focus import Focus, find_focus, focus_of


def test_one_chunk_is_in_focus() -> None:
    assert focus_of(np.array([3.0])) == (0,)


def test_two_chunks_have_one_gap() -> None:
    # p = 1, so its term is 0, and still the only one.
    assert focus_of(np.array([1.0, 4.0])) == (1,)
    assert focus_of(np.array([1.0, 4.0]), by="gap") == (1,)


def test_equal_chunks_are_all_in_focus() -> None:
    assert focus_of(np.array([2.0, 2.0, 2.0])) == (0, 1, 2)


def test_as_printed_a_gap_that_is_nearly_all_is_not_the_cut() -> None:
    # Sorted 10, 1, 0: gaps 9, 1; p = 0.9, 0.1; -p log p = 0.095, 0.230.
    masses = np.array([1.0, 10.0, 0.0])
    assert focus_of(masses) == (0, 1)
    assert focus_of(masses, by="gap") == (1,)


def test_where_gaps_are_alike_both_rules_agree() -> None:
    # Sorted 8, 7, 4, 2: gaps 1, 3, 2; p = 1/6, 1/2, 1/3; terms 0.299, 0.347, 0.366.
    masses = np.array([2.0, 8.0, 4.0, 7.0])
    assert focus_of(masses) == (1, 2, 3)
    assert focus_of(masses, by="gap") == (1, 3)


def test_it_stops_when_layers_agree() -> None:
    masses = np.array([[0.0, 5.0], [9.0, 0.0], [9.0, 0.0], [0.0, 99.0]])
    assert find_focus(masses, window=2) == Focus((0,), 2)
    assert find_focus(masses, window=1) == Focus((1,), 0)


def test_without_agreement_the_last_layer_speaks() -> None:
    masses = np.array([[0.0, 5.0], [9.0, 0.0]])
    assert find_focus(masses, window=3) == Focus((0,), None)
