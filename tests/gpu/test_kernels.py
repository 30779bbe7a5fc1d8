# SPDX-License-Identifier: Apache-2.0
"""The kernels on a GPU against float64 torch: FlashInfer's calls, and the moving of rows."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from eval.gpu.plans import has_fa3
from flashinfer_masks.batches import PlanName, plan_batch
from tests.helpers.moves import assert_rows_move_as_by_torch, make_table
from tests.helpers.paged import PagedBatch, draw_steps

pytestmark = [pytest.mark.gpu, pytest.mark.sglang]

HEAD_DIM = 128
SCALE = HEAD_DIM**-0.5


@pytest.mark.parametrize("plan", get_args(PlanName))
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [("fa2", torch.bfloat16), ("fa2", torch.float16), ("fa3", torch.bfloat16)],
)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(32, 8), (4, 4)])
def test_a_batch_gets_the_attention_each_prompt_gets_alone(
    plan: PlanName, backend: str, dtype: torch.dtype, num_heads: int, num_kv_heads: int
) -> None:
    if backend == "fa3" and (plan == "custom_mask" or not has_fa3()):
        pytest.skip("FlashInfer's FA3 kernels take no mask, and need a Hopper GPU")
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper, merge_state

    from sglang_patches.attention.flashinfer_calls import FlashInferCall, Heads, Wrappers
    from sglang_patches.attention.paged import BatchAttention, Scales, find_slots

    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    heads = Heads(num_heads, num_kv_heads, HEAD_DIM, dtype, dtype)
    wrappers = Wrappers(
        lambda kind: BatchPrefillWithPagedKVCacheWrapper(
            workspace, "NHD", backend="fa2" if kind == "masked" else backend
        )
    )
    for seed in range(8):  # the wrappers plan again for every batch
        wrappers.start()
        steps = draw_steps(seed, recomputes=seed % 2 == 1)
        case = PagedBatch.make(
            steps,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=HEAD_DIM,
            dtype=dtype,
            device="cuda",
        )
        attention = BatchAttention(
            plan_batch(steps, plan),
            lambda call, case=case: FlashInferCall(
                wrappers.take(call.kind),
                call,
                find_slots(call, case.req_to_token, case.pool_indices),
                heads,
            ),
            lambda *states: merge_state(*states),
            case.query.device,
        )
        for _ in range(2):  # two layers run what was planned once
            found = attention.run(case.query, case.keys, case.values, Scales(SCALE)).double()
            expected = case.expected(SCALE)
            assert (found - expected).norm() < 5e-3 * expected.norm(), (seed, plan)
            torch.testing.assert_close(found, expected, rtol=0, atol=4e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(("num_heads", "head_dim", "rotary_dim"), [(8, 128, 128), (2, 96, 64)])
def test_rows_move_as_by_torch(
    dtype: torch.dtype, is_neox: bool, num_heads: int, head_dim: int, rotary_dim: int
) -> None:
    from sglang_patches.attention import shift_kernel

    assert_rows_move_as_by_torch(
        shift_kernel,
        shape=(4000, num_heads, head_dim),
        num_rows=1501,
        table=make_table(rotary_dim, 8000),
        dtype=dtype,
        is_neox=is_neox,
        atol=1e-5 if dtype is torch.float32 else 4e-2,
        device="cuda",
        num_layers=5,
    )
