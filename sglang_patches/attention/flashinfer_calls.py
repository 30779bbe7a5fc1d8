# SPDX-License-Identifier: Apache-2.0
"""One kernel call by FlashInfer's paged prefill wrapper, for many short requests.

Written for FlashInfer 0.6.15 (the one that SGLang 0.5.17 brings).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashinfer_masks.batches import Call, Kind
from sglang_patches.attention.paged import Scales


@dataclass(frozen=True, slots=True)
class Heads:
    """What a plan must know of the model."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    query_dtype: torch.dtype
    kv_dtype: torch.dtype


class Wrappers:
    """FlashInfer's wrappers, one for each call of a forward pass, used again by the next one.

    What a wrapper has planned must last until the last layer has run, so no two calls share one.
    """

    def __init__(self, make: Callable[[Kind], Any]) -> None:
        self._make = make
        self._wrappers: dict[Kind, list[Any]] = {}
        self._taken: Counter[Kind] = Counter()

    def start(self) -> None:
        """Begin the next forward pass: all wrappers are free."""
        self._taken.clear()

    def take(self, kind: Kind) -> Any:
        """Returns one that no call of this pass has."""
        wrappers = self._wrappers.setdefault(kind, [])
        if self._taken[kind] == len(wrappers):
            wrappers.append(self._make(kind))
        self._taken[kind] += 1
        return wrappers[self._taken[kind] - 1]


class FlashInferCall:
    """A `Call`, planned on a wrapper of its own: until its next plan it runs once per layer."""

    def __init__(self, wrapper: Any, call: Call, slots: Tensor, heads: Heads) -> None:
        """Plan it.

        wrapper  BatchPrefillWithPagedKVCacheWrapper without CUDA graph, of no other call that
                 runs in the same forward pass
        slots    (K,) int32 on the device, of all KV rows
        """
        self._wrapper = wrapper
        self._is_causal = call.kind == "causal"
        plan_requests(wrapper, call, slots, heads)

    def run(
        self, query: Tensor, keys: Tensor, values: Tensor, scales: Scales, *, needs_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Run as in `PagedCall`; the log-sum-exp is of base 2, for FlashInfer's `merge_state`."""
        how: dict[str, Any] = {
            "causal": self._is_causal,
            "sm_scale": scales.scores,
            "logits_soft_cap": scales.soft_cap,
            "k_scale": scales.keys,
            "v_scale": scales.values,
        }
        if needs_lse:
            return self._wrapper.forward_return_lse(query, (keys, values), **how)
        return self._wrapper.forward(query, (keys, values), **how), None


def plan_requests(wrapper: Any, call: Call, slots: Tensor, heads: Heads) -> None:
    """`wrapper.plan`, without what makes it slow for hundreds of requests.

    `plan` takes Python's `max` over a tensor with one element a request, and counts the bits of
    a mask on the device and waits for them. Its first call finds the kernels; later ones go to
    the same planner with what is known on the host, as SGLang's `fast_prefill_plan` does for
    CUDA graphs.
    """
    batch = call.batch
    q_lens, kv_lens = np.diff(batch.q_indptr), np.diff(batch.kv_indptr)
    q_indptr, kv_indptr = torch.from_numpy(batch.q_indptr), torch.from_numpy(batch.kv_indptr)
    last_page_lens = torch.ones(len(kv_lens), dtype=torch.int32)
    if wrapper._cached_module is None:
        # The smallest plan there is: only the kernels that it finds are kept.
        one = torch.tensor([0, 1], dtype=torch.int32)
        wrapper.plan(
            one,
            one,
            slots[:1],
            last_page_lens[:1],
            heads.num_heads,
            heads.num_kv_heads,
            heads.head_dim,
            1,
            causal=call.kind == "causal",
            q_data_type=heads.query_dtype,
            kv_data_type=heads.kv_dtype,
        )
    device = slots.device
    wrapper._batch_size = len(kv_lens)
    wrapper._num_qo_heads, wrapper._num_kv_heads = heads.num_heads, heads.num_kv_heads
    wrapper._qo_indptr_last = int(batch.q_indptr[-1])
    wrapper._max_q_len, wrapper._max_kv_len = int(q_lens.max()), int(kv_lens.max())
    wrapper._qo_indptr_buf = q_indptr.to(device, non_blocking=True)
    wrapper._paged_kv_indptr_buf = kv_indptr.to(device, non_blocking=True)
    wrapper._paged_kv_indices_buf = slots
    wrapper._paged_kv_last_page_len_buf = last_page_lens.to(device, non_blocking=True)
    wrapper._custom_mask_buf = wrapper._mask_indptr_buf = None
    if call.masks is not None:
        bits = torch.from_numpy(call.masks.bits)
        wrapper._custom_mask_buf = bits.to(device, non_blocking=True)
        wrapper._mask_indptr_buf = torch.from_numpy(call.masks.mask_indptr).to(
            device, non_blocking=True
        )
    arguments = [
        wrapper._float_workspace_buffer,
        wrapper._int_workspace_buffer,
        wrapper._pin_memory_int_workspace_buffer,
        q_indptr,
        kv_indptr,
        torch.from_numpy(kv_lens.astype(np.int32)),
        int(batch.q_indptr[-1]),
        len(kv_lens),
        heads.num_heads,
        heads.num_kv_heads,
        1,  # slots of a page
        False,  # CUDA graph
        heads.head_dim,
        heads.head_dim,
        call.kind == "causal",
        -1,  # window
    ]
    if wrapper._backend == "fa2":
        arguments += [-1, False, 0]  # no fixed split, split KV allowed, no colocated blocks
    planner: Any = wrapper._cached_module
    wrapper._plan_info = planner.plan(*arguments)
