# SPDX-License-Identifier: Apache-2.0
"""Packed masks, against `numpy.packbits` and against how the kernel reads them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from flashinfer_masks import (
    PackedMasks,
    PlanTooLargeError,
    Runs,
    Step,
    pack_runs,
    plan_cascade,
)
from tests.flashinfer_masks.make import pack_masks, steps

sizes = st.integers(0, 9)
masks_strategy = st.lists(npst.arrays(bool, st.tuples(sizes, sizes)))
long_runs = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 200)), max_size=6)


def runs_of(mask: np.ndarray) -> Runs:
    """Found one element after another."""
    flat = [False, *mask.ravel().tolist(), False]
    starts = [i for i in range(mask.size) if flat[i + 1] and not flat[i]]
    stops = [i for i in range(1, mask.size + 1) if flat[i] and not flat[i + 1]]
    return Runs(np.array(starts, np.int64), np.array(stops, np.int64), *mask.shape)


@settings(max_examples=200, deadline=None)
@given(masks=masks_strategy)
def test_each_mask_is_packed_as_numpy_packs_it(masks: list[np.ndarray]) -> None:
    packed = pack_masks(masks)
    assert (packed.bits.dtype, packed.mask_indptr.dtype) == (np.uint8, np.int32)
    assert packed.num_requests == len(masks)
    assert packed.mask_indptr[-1] == len(packed.bits)
    for request, mask in enumerate(masks):
        start, stop = packed.mask_indptr[request : request + 2]
        expected = np.packbits(mask.ravel(), bitorder="little")
        np.testing.assert_array_equal(packed.bits[start:stop], expected)


@settings(max_examples=200, deadline=None)
@given(masks=masks_strategy)
def test_runs_are_packed_as_their_masks_are(masks: list[np.ndarray]) -> None:
    assert_same(pack_runs([runs_of(mask) for mask in masks]), pack_masks(masks))


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(long_runs, min_size=1))
def test_long_runs_are_packed_as_their_masks_are(pieces: list[list[tuple[int, int]]]) -> None:
    masks = [
        np.array([[bit for gap, ones in each for bit in [False] * gap + [True] * ones]], bool)
        for each in pieces
    ]
    assert_same(pack_runs([runs_of(mask) for mask in masks]), pack_masks(masks))


def test_runs_that_touch_are_as_one() -> None:
    one, two = np.array([3]), np.array([3, 70])
    whole = pack_runs([Runs(one, np.array([140]), 2, 80)])
    assert_same(pack_runs([Runs(two, np.array([70, 140]), 2, 80)]), whole)


def assert_same(packed: PackedMasks, expected: PackedMasks) -> None:
    assert packed.bits.dtype == np.uint8
    np.testing.assert_array_equal(packed.bits, expected.bits)
    np.testing.assert_array_equal(packed.mask_indptr, expected.mask_indptr)


@settings(max_examples=100, deadline=None)
@given(step=steps())
def test_the_kernel_reads_back_the_masks_of_a_cascade(step: Step) -> None:
    """The read of FlashInfer's `attention/variants.cuh`, in Python."""
    masks = plan_cascade(step).masks()
    packed = pack_masks(masks)
    for request, mask in enumerate(masks):
        custom_mask = packed.bits[packed.mask_indptr[request] :]
        for (query, key), seen in np.ndenumerate(mask):
            offset = query * mask.shape[1] + key
            assert (custom_mask[offset // 8] >> (offset % 8)) & 1 == seen


def test_masks_start_on_a_byte_of_their_own() -> None:
    packed = pack_masks([np.ones((1, 3), bool), np.array([[False, True]]), np.ones((3, 3), bool)])
    assert packed.bits.tolist() == [0b111, 0b10, 0xFF, 0b1]
    assert packed.mask_indptr.tolist() == [0, 1, 2, 4]


def test_no_masks_pack_to_no_bytes() -> None:
    packed = pack_masks([])
    assert (packed.bits.tolist(), packed.mask_indptr.tolist()) == ([], [0])


def test_more_bytes_than_int32_counts_are_refused_before_packing() -> None:
    huge = np.broadcast_to(np.False_, (2**17, 2**17))  # 2**34 bits that take no memory
    with pytest.raises(PlanTooLargeError, match="2147483648 bytes of packed mask"):
        pack_masks([huge])
    with pytest.raises(PlanTooLargeError, match="2147483648 bytes of packed mask"):
        pack_runs([Runs(np.array([0]), np.array([1]), *huge.shape)])
