# SPDX-License-Identifier: Apache-2.0
"""Queries, slots and merging of a batch, with kernels that read a call as FlashInfer does.

FlashInfer runs on a GPU only, so its kernels are written out here in torch; that they agree is
checked on a GPU (eval/gpu/CHECKS.md).
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from flashinfer_masks import Step, fused
from flashinfer_masks.batches import Call, PlainStep, PlanName, plan_batch
from flashinfer_masks.masked import causal_mask
from tests.flashinfer_masks.make import batches
from tests.helpers.paged import PagedBatch, attend, draw_steps

pytestmark = pytest.mark.sglang
paged = pytest.importorskip("sglang_patches.attention.paged")

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 8
SCALE = HEAD_DIM**-0.5


class TorchCall:
    """A call as the paged wrapper of FlashInfer reads it: indptrs, slots, packed masks."""

    def __init__(self, call: Call, slots: Tensor) -> None:
        self.call, self.slots = call, slots.long()

    def run(
        self, query: Tensor, keys: Tensor, values: Tensor, scales: paged.Scales, *, needs_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        assert scales.scores == SCALE
        batch = self.call.batch
        output, lse = torch.empty_like(query), query.new_empty(query.shape[:2])
        for i in range(batch.num_requests):
            rows = slice(*batch.q_indptr[i : i + 2])
            slots = self.slots[slice(*batch.kv_indptr[i : i + 2])]
            mask = self.mask(i, rows.stop - rows.start, len(slots))
            output[rows], lse[rows] = attend(query[rows], keys[slots], values[slots], mask, SCALE)
        return output, lse if needs_lse else None

    def mask(self, request: int, num_queries: int, num_keys: int) -> Tensor:
        if self.call.kind == "causal":
            return torch.from_numpy(causal_mask(num_queries, num_keys))
        if self.call.kind == "full":
            return torch.ones(num_queries, num_keys, dtype=torch.bool)
        masks = self.call.masks
        assert masks is not None
        bits = masks.bits[masks.mask_indptr[request] :]
        mask = np.unpackbits(bits, count=num_queries * num_keys, bitorder="little")
        return torch.from_numpy(mask.reshape(num_queries, num_keys).astype(bool))


def merge(
    first: Tensor, first_lse: Tensor, second: Tensor, second_lse: Tensor
) -> tuple[Tensor, Tensor]:
    share = torch.sigmoid((first_lse - second_lse) * np.log(2)).unsqueeze(-1)
    return first * share + second * (1 - share), torch.logaddexp2(first_lse, second_lse)


def check(batch: list[Step | PlainStep], plan: PlanName) -> None:
    case = PagedBatch.make(
        batch,
        num_heads=NUM_HEADS,
        num_kv_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        dtype=torch.float64,
    )
    attention = paged.BatchAttention(
        plan_batch(batch, plan),
        lambda call: TorchCall(call, paged.find_slots(call, case.req_to_token, case.pool_indices)),
        merge,
        case.query.device,
    )
    found = attention.run(case.query, case.keys, case.values, paged.Scales(SCALE))
    # The log-sum-exp between levels is kept in float32, as on a GPU.
    torch.testing.assert_close(found, case.expected(SCALE), rtol=0, atol=1e-5)


@pytest.mark.parametrize("plan", get_args(PlanName))
@settings(max_examples=60, deadline=None)
@given(batch=batches())
def test_each_prompt_gets_the_attention_it_gets_alone(
    plan: PlanName, batch: list[Step | PlainStep]
) -> None:
    check(batch, plan)


@pytest.mark.parametrize("plan", get_args(PlanName))
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("recomputes", [False, True])
def test_prompts_of_graphrag_get_it_too(plan: PlanName, seed: int, recomputes: bool) -> None:
    check(draw_steps(seed, recomputes=recomputes), plan)


@settings(max_examples=60, deadline=None)
@given(batch=batches())
def test_blocks_of_two_rows_merge_in_many_levels(batch: list[Step | PlainStep]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "BLOCK_ROWS", 2)
        check(batch, "blocks")
