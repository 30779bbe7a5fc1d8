# SPDX-License-Identifier: Apache-2.0
"""Attention plans on FlashInfer: planning of a whole batch, and its kernels where there is a GPU.

Heads are those of Llama-3-8B, in bfloat16. `causal` is ordinary attention over the same rows,
`custom_mask` one dense mask. Without a GPU only numpy's part of planning is timed. With a Hopper
GPU all but `custom_mask` is measured on FlashInfer's FA3 kernels too; these know no masks, so
that of `cascade`'s calls the masked one stays on FA2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

from eval.gpu.timing import device_ms, find_device
from eval.timing import host_ms
from flashinfer_masks.batches import BatchPlan, Call, Kind, PlainStep, PlanName, plan_batch
from flashinfer_masks.visibility import Step

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 128
WORKSPACE_BYTES = 384 << 20
CAUSAL = "causal"
BACKENDS = ("fa2", "fa3")
"""FlashInfer's kernels; the first are those of SGLang's backend `flashinfer`."""


def measure_flashinfer(step: Step, repeats: int) -> list[dict[str, Any]]:
    """Milliseconds of planning and of one layer, by plan; a layer's is None without a GPU.

    plan_ms_median holds all that is done once per forward pass: plans of the prompts, slots,
    and FlashInfer's own planning, until the device is done with it. `kernels` is `flashinfer`
    for those that SGLang takes (FA2), `flashinfer_fa3` for FA3.
    """
    rows: list[dict[str, Any]] = []
    plans = {name: partial(plan_batch, [step], name) for name in get_args(PlanName)}
    plans[CAUSAL] = partial(plan_batch, [PlainStep(step.num_prefix, step.num_new)], "segments")
    if find_device() is None:
        for name, plan in plans.items():
            plan_ms = host_ms(plan, repeats)
            rows.append(_row(name, "fa2", plan_ms, None))
        return rows
    for backend in BACKENDS if has_fa3() else BACKENDS[:1]:
        bench = _Bench(step, backend)
        for name, plan in plans.items():
            if (name, backend) != ("custom_mask", "fa3"):
                rows.append(_row(name, backend, *bench.measure(plan, repeats)))
    return rows


def has_fa3() -> bool:
    """Whether the current CUDA device runs FlashInfer's FA3 kernels."""
    import torch
    from flashinfer.utils import is_sm90a_supported

    return is_sm90a_supported(torch.device("cuda"))


def _row(plan: str, backend: str, plan_ms: float, run_ms: float | None) -> dict[str, Any]:
    kernels = "flashinfer" if backend == "fa2" else f"flashinfer_{backend}"
    return {
        "plan": plan,
        "plan_ms_median": plan_ms,
        "run_ms_median": run_ms,
        "kernels": kernels,
    }


class _Bench:
    """A pool with the rows of one prompt in scattered slots, and FlashInfer's wrappers."""

    def __init__(self, step: Step, backend: str) -> None:
        import torch

        from sglang_patches.attention.flashinfer_calls import Heads, Wrappers
        from sglang_patches.attention.paged import Scales

        rng = torch.Generator("cuda").manual_seed(0)

        def draw(*shape: int) -> torch.Tensor:
            values = torch.randn(*shape, HEAD_DIM, generator=rng, device="cuda")
            return values.to(torch.bfloat16)

        num_slots = 2 * step.num_rows
        slots = torch.randperm(num_slots, generator=rng, device="cuda")
        self._rows = slots[: step.num_rows].to(torch.int32)[None]
        self._pool_indices = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._query = draw(step.num_new, NUM_HEADS)
        self._keys, self._values = draw(num_slots, NUM_KV_HEADS), draw(num_slots, NUM_KV_HEADS)
        self._scales = Scales(HEAD_DIM**-0.5)
        self._heads = Heads(NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, torch.bfloat16, torch.bfloat16)
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self._backend = backend
        self._wrappers = Wrappers(self._make_wrapper)

    def measure(self, plan: Callable[[], BatchPlan], repeats: int) -> tuple[float, float]:
        """Milliseconds of planning and of running."""
        import torch

        from sglang_patches.attention.paged import BatchAttention

        made: list[BatchAttention] = []

        def prepare() -> None:
            self._wrappers.start()
            made[:] = [BatchAttention(plan(), self._make_call, self._merge, self._rows.device)]

        plan_ms = host_ms(prepare, repeats, torch.cuda.synchronize)
        run_ms = device_ms(
            lambda: made[0].run(self._query, self._keys, self._values, self._scales), repeats
        )
        return plan_ms, run_ms

    def _make_call(self, call: Call) -> Any:
        from sglang_patches.attention.flashinfer_calls import FlashInferCall
        from sglang_patches.attention.paged import find_slots

        slots = find_slots(call, self._rows, self._pool_indices)
        return FlashInferCall(self._wrappers.take(call.kind), call, slots, self._heads)

    def _make_wrapper(self, kind: Kind) -> Any:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        backend = "fa2" if kind == "masked" else self._backend
        return BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD", backend=backend)

    @staticmethod
    def _merge(*states: Any) -> Any:
        from flashinfer import merge_state

        return merge_state(*states)
