# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's packed custom mask: bool masks as little-endian bits, each padded to a byte.

Semantics of `flashinfer.quantization.segment_packbits(..., bitorder="little")`, on the host.

In FlashInfer 0.6.15 `BatchPrefillWithPagedKVCacheWrapper.plan(packed_custom_mask=...)` leaves
`_mask_indptr_buf` counting mask *elements*, while the kernel adds it to a byte pointer: wrong
from the second request on. Copy `PackedMasks.indptr` into that buffer after `plan`, or give
`plan` the unpacked `custom_mask`, which it packs and counts rightly below 2**31 elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flashinfer_masks.ragged import expand_ranges, make_indptr

_ALL = np.uint64(2**64 - 1)


@dataclass(frozen=True, slots=True, eq=False)
class PackedMasks:
    """The masks of a batch as bits.

    bits    (mask_indptr[-1],) uint8; element e of request r is bit e % 8 of byte
            mask_indptr[r] + e // 8, where e = query * num_keys + key
    mask_indptr  (R + 1,) int32, in bytes
    """

    bits: np.ndarray = field(repr=False)
    mask_indptr: np.ndarray

    @property
    def num_requests(self) -> int:
        return len(self.mask_indptr) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """A mask as the runs of its ones, row-major: a few per query, however many keys it sees.

    starts, stops  (R,) int64, element query * num_keys + key; ascending, none empty, no overlap
    num_queries, num_keys  of the mask
    """

    starts: np.ndarray = field(repr=False)
    stops: np.ndarray = field(repr=False)
    num_queries: int
    num_keys: int

    @property
    def size(self) -> int:
        """Elements of the mask."""
        return self.num_queries * self.num_keys


def pack_runs(masks: Sequence[Runs]) -> PackedMasks:
    """Packs masks that are given as runs, without a byte for every element.

    Raises PlanTooLargeError when the bytes need offsets beyond int32 (before packing).
    """
    mask_indptr = _make_mask_indptr([mask.size for mask in masks])
    first_bits = 8 * mask_indptr[:-1].astype(np.int64)
    none = np.empty(0, np.int64)  # a batch may have no masks
    starts = [mask.starts + bit for mask, bit in zip(masks, first_bits, strict=True)]
    lasts = [mask.stops + (bit - 1) for mask, bit in zip(masks, first_bits, strict=True)]
    start, last = np.concatenate([none, *starts]), np.concatenate([none, *lasts])
    num_bytes = int(mask_indptr[-1])
    words = np.zeros((num_bytes + 7) // 8, "<u8")  # so that byte b holds bits 8 * b and up
    # Runs ascend, so what they write to their first and last words is in the order of the words.
    at = np.stack((start, last), axis=1)
    bits = np.empty(at.shape, np.uint64)
    bits[:, 0] = _ALL << (start & 63).astype(np.uint64)
    bits[:, 1] = _ALL >> (~last & 63).astype(np.uint64)
    at >>= 6
    inside = at[:, 0] == at[:, 1]
    bits[inside] = (bits[inside, 0] & bits[inside, 1])[:, None]
    words[expand_ranges(at[:, 0] + 1, np.maximum(at[:, 1] - at[:, 0] - 1, 0))] = _ALL
    at, bits = at.ravel(), bits.ravel()
    begins = np.flatnonzero(np.diff(at, prepend=-1))
    if len(begins):
        words[at[begins]] = np.bitwise_or.reduceat(bits, begins)
    return PackedMasks(words.view(np.uint8)[:num_bytes], mask_indptr)


def _make_mask_indptr(sizes: Sequence[int]) -> np.ndarray:
    """Returns the offsets of masks of so many elements, each padded to a byte."""
    return make_indptr((np.array(sizes, np.int64) + 7) // 8, "bytes of packed mask")
