# SPDX-License-Identifier: Apache-2.0
"""Attention by torch ops: new rows alone, both ways to compute it, and the merging of parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytestmark = pytest.mark.sglang

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 16
SCALE = 0.3


@pytest.mark.parametrize("num_new", [1, 2, 3, 33, 34, 64, 191, 520, 1100])
@pytest.mark.parametrize("num_keys", [1101, 1152, 1154])
def test_new_rows_alone_equal_the_same_rows_of_the_whole_square(num_new, num_keys) -> None:
    """SGLang's own attention computes the square; promise P5 allows 1e-5 after all layers.

    A merge of two partial attentions by log-sum-exp is wrong by 3e-6 here, in each layer.
    """
    from sglang_patches.attention.torch_attend import attend, attend_causal

    generator = torch.Generator().manual_seed(0)
    # As the engine has them: token first in memory, heads first in the view.
    query = 3 * torch.randn(1, num_keys, NUM_HEADS, HEAD_DIM, generator=generator).transpose(1, 2)
    keys, values = torch.randn(2, 1, num_keys, NUM_KV_HEADS, HEAD_DIM, generator=generator)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    square = attend(query, keys, values, SCALE, is_causal=True)
    rows = attend_causal(query[..., -num_new:, :], keys, values, SCALE)
    torch.testing.assert_close(rows[0], square[0][..., -num_new:, :], rtol=0, atol=5e-7)
    torch.testing.assert_close(rows[1], square[1][..., -num_new:], rtol=0, atol=5e-6)


def test_the_generic_attention_of_a_gpu_equals_that_of_a_cpu() -> None:
    """The same function takes another way on a GPU; here that way runs on a CPU."""
    from sglang_patches.attention import torch_attend

    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, NUM_HEADS, 7, HEAD_DIM, generator=generator)
    keys, values = torch.randn(2, 1, NUM_KV_HEADS, 7, HEAD_DIM, generator=generator)
    mask = torch.zeros(7, 7).masked_fill(torch.ones(7, 7).triu(2).bool(), -torch.inf)
    keywords: dict[str, Any]
    for keywords in ({}, {"is_causal": True}, {"mask": mask}):
        fused = torch_attend.attend(query, keys, values, SCALE, **keywords)
        generic = torch_attend.attend_generic(query, keys, values, SCALE, **keywords)
        for left, right in zip(fused, generic, strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=2e-6)


def test_parts_of_the_keys_merge_to_attention_over_all_of_them() -> None:
    from sglang_patches.attention.torch_attend import attend, merge

    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, NUM_HEADS, 5, HEAD_DIM, generator=generator)
    keys, values = torch.randn(2, 1, NUM_KV_HEADS, 9, HEAD_DIM, generator=generator)
    whole, _ = attend(query, keys, values, SCALE)
    parts = [attend(query, keys[:, :, part], values[:, :, part], SCALE) for part in CUT]
    torch.testing.assert_close(merge(*parts[0], *parts[1]), whole, rtol=0, atol=2e-6)


CUT = (slice(0, 2), slice(2, 9))
