# SPDX-License-Identifier: Apache-2.0
"""Merging sequences: the same segments as a trie that is built token by token."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depcache.prompt.forest import Forest
from depcache.prompt.prefix_tree import merge_sequences, merge_sequences_whole
from tests.depcache.prompt.make import merge_sequences_ref, read_segments

# Few different tokens and long runs: many merges, splits and prefixes of each other.
SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), max_size=15)


def merge(sequences: list[list[int]]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    tokens, lens, parents = merge_sequences(sequences)
    return read_segments(Forest.make(len(tokens) + 1, 0, lens, parents), tokens)


@given(SEQUENCES)
def test_segments_and_their_order_equal_the_naive_trie(sequences):
    assert merge(sequences) == merge_sequences_ref(sequences)


@given(SEQUENCES, st.randoms(use_true_random=False))
def test_the_set_of_segments_does_not_depend_on_the_order(sequences, random):
    expected = set(merge(sequences))
    shuffled = sequences + sequences[:3]
    random.shuffle(shuffled)
    assert set(merge(shuffled)) == expected


@given(SEQUENCES)
def test_every_sequence_can_be_read_back(sequences):
    ways = {before + run for before, run in merge(sequences)}
    for sequence in sequences:
        assert any(way[: len(sequence)] == tuple(sequence) for way in ways)


def test_siblings_keep_the_order_of_their_first_appearance():
    tokens, lens, parents = merge_sequences([[5, 1, 1], [9], [5, 2], [4], [5, 1, 2]])
    assert tokens == [5, 1, 1, 2, 2, 9, 4]
    assert lens == [1, 1, 1, 1, 1, 1, 1]
    assert parents == [-1, 0, 1, 1, 0, -1, -1]


def test_a_prefix_vanishes_whichever_comes_first():
    assert merge_sequences([[1, 2], [1, 2, 3]]) == ([1, 2, 3], [3], [-1])
    assert merge_sequences([[1, 2, 3], [1, 2]]) == ([1, 2, 3], [3], [-1])


@pytest.mark.timeout(600)  # not a measurement: quadratic work would take longer anywhere
def test_long_sequences_that_part_late_take_no_quadratic_time():
    base = list(range(50_000))
    sequences = [[*base[: 50_000 - 100 * i], -1] for i in range(100)]
    _, lens, _ = merge_sequences([base, *sequences])
    assert len(lens) == 199  # the first one only grows `base`


@given(SEQUENCES.filter(len))
def test_whole_sequences_end_where_segments_end(sequences):
    (tokens, lens, parents), ends = merge_sequences_whole(sequences)
    stops = list(accumulate(lens))
    for sequence, end in zip(sequences, ends, strict=True):
        way: list[int] = []
        while end >= 0:
            way = tokens[stops[end] - lens[end] : stops[end]] + way
            end = parents[end]
        assert way == sequence
    # Only the ends cut more than they must: the ways are those of a merged tree.
    merged = {before + run for before, run in merge(sequences)}
    forest = Forest.make(len(tokens) + 1, 0, lens, parents)
    assert {before + run for before, run in read_segments(forest, tokens)} == merged | {
        tuple(sequence) for sequence in sequences
    }
