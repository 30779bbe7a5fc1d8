# SPDX-License-Identifier: Apache-2.0
"""Cache-Craft's numbers against examples worked out by hand."""

from __future__ import annotations

from math import exp

import pytest

from depcache.select.cachecraft import (
    adjusted_overlap,
    contextuality,
    fix_overhead,
    num_to_fix,
    order_penalty,
    prefix_overlap,
    worth_of_use,
)

INTER = {"a": 3.0, "b": 1.0, "c": 0.0}


def test_contextuality_of_a_worked_example() -> None:
    # a = 6 / (2 * 3) + 4 / (2 * 4) = 1.5; b = 2 / 2**2 = 0.5; a / b = 3
    assert contextuality([6.0, 4.0], 2.0, [3, 4], 2) == pytest.approx(1 / (1 + exp(-3)))


def test_a_chunk_that_was_first_has_half() -> None:
    assert contextuality([], 2.0, [], 2) == 0.5
    assert contextuality([], 0.0, [], 1) == 0.5


def test_a_chunk_that_looks_only_at_others_has_one() -> None:
    assert contextuality([1.0], 0.0, [5], 1) == 1.0


def test_overlap_weighs_chunks_by_attention() -> None:
    assert prefix_overlap(INTER, "abc", "a") == 0.75
    assert prefix_overlap(INTER, "abc", "cb") == 0.25
    assert prefix_overlap(INTER, "abc", "xyz") == 0.0
    assert prefix_overlap(INTER, "abc", "abc") == 1.0


def test_overlap_of_empty_prefixes() -> None:
    assert prefix_overlap({}, "", "") == 1.0
    assert prefix_overlap({}, "", "a") == 0.0
    assert prefix_overlap({"c": 0.0}, "c", "c") == 0.0


def test_order_counts_pairs_that_changed() -> None:
    assert order_penalty("abc", "abc") == 0.0
    assert order_penalty("abc", "cba") == 1.0
    assert order_penalty("abc", "bac") == pytest.approx(1 / 3)
    assert order_penalty("abxc", "cyab") == pytest.approx(2 / 3)


@pytest.mark.parametrize(("old", "new"), [("", ""), ("a", "a"), ("ab", "a"), ("ab", "xy")])
def test_fewer_than_two_common_chunks_have_no_order(old: str, new: str) -> None:
    assert order_penalty(old, new) == 0.0


def test_adjusted_overlap_is_overlap_less_the_penalty() -> None:
    # beta = 1, gamma = 1/3
    assert adjusted_overlap(INTER, "abc", "bac") == pytest.approx(2 / 3)


def test_overhead_is_clipped() -> None:
    assert fix_overhead(0.5, 0.2) == pytest.approx(0.4)
    assert fix_overhead(0.9, 0.0, alpha=3.0) == 1.0
    assert fix_overhead(0.9, 1.0, alpha=3.0) == 0.0


@pytest.mark.parametrize(
    ("cfo", "length", "number"),
    [(0.0, 7, 0), (1.0, 7, 7), (0.3, 10, 3), (0.31, 10, 4), (0.01, 1, 1), (0.7, 10, 7)],
)
def test_tokens_to_fix_are_rounded_up(cfo: float, length: int, number: int) -> None:
    assert num_to_fix(cfo, length) == number


def test_a_use_that_costs_nothing_is_worth_a_hundred() -> None:
    assert worth_of_use(0.0) == pytest.approx(100)
    assert worth_of_use(0.5) == 2.0
