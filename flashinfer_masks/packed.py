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

from flashinfer_masks.ragged import make_indptr


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


def pack_masks(masks: Sequence[np.ndarray]) -> PackedMasks:
    """Pack one bool array (queries, keys) per request; any may be empty.

    Equal to `numpy.packbits(mask, bitorder="little")` of each mask, side by side.
    Raises PlanTooLargeError when the bytes need offsets beyond int32 (before packing).
    """
    lens = np.array([(mask.size + 7) // 8 for mask in masks], np.int64)
    mask_indptr = make_indptr(lens, "bytes of packed mask")
    packed = [np.packbits(mask, bitorder="little") for mask in masks]
    bits = np.concatenate(packed) if packed else np.empty(0, np.uint8)
    return PackedMasks(bits, mask_indptr)
