# SPDX-License-Identifier: Apache-2.0
"""SGLang's `flashinfer` backend, with dependency attention for the prefills that have trees.

A prefill with at least one dependency prompt runs by our plan, with its plain prompts; all
others, and every decode with its CUDA graphs, run as in stock SGLang: rows of a prefix need no
order, so a decode sees what it should.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.flashinfer_backend import (
    FlashInferAttnBackend,
    PrefillMetadata,
    _safe_merge_state,  # pyright: ignore[reportPrivateUsage]
)
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from depcache.config import Config
from depcache.errors import ConfigError
from flashinfer_masks.batches import Call, Kind, PlainStep, PlanName, choose_plan, plan_batch
from sglang_patches.attention.copies import RowCopier
from sglang_patches.attention.flashinfer_calls import FlashInferCall, Heads, Wrappers
from sglang_patches.attention.keepers import Keepers
from sglang_patches.attention.paged import BatchAttention, Scales, find_slots
from sglang_patches.forward import DependencyBatch, get_batch


class DependencyFlashInferBackend(FlashInferAttnBackend):
    """Runs the batch's `DependencyBatch`; batches without one are the stock backend's."""

    def __init__(self, runner: Any, config: Config, **options: Any) -> None:
        super().__init__(runner, **options)
        if self.num_wrappers != 1 or self.prefill_uses_dequant_workspace:
            raise ConfigError(
                "dependency prompts need one kind of attention over unpacked KV on FlashInfer: "
                "serve a model without sliding windows, and leave --kv-cache-dtype fp4 out"
            )
        plan = config.attention_plan
        self._plan: PlanName | None = None if plan == "auto" else plan
        self._rows = runner.req_to_token_pool.req_to_token
        self._copier = RowCopier(runner)
        self._keepers = Keepers(runner)
        self._wrappers = Wrappers(self._make_wrapper)
        self._attention: BatchAttention | None = None

    def init_forward_metadata(self, forward_batch: Any) -> None:
        dependencies = get_batch(forward_batch)
        self._copier.run(dependencies)
        self._keepers.start(dependencies, forward_batch)
        self._attention = None
        if dependencies is None or all(step is None for step in dependencies.steps):
            super().init_forward_metadata(forward_batch)
            return
        self._attention = self._make_attention(forward_batch, dependencies)
        self.forward_metadata = PrefillMetadata([], use_ragged=False, extend_no_prefix=False)

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        if self._keepers.is_beside:
            return self._keepers.attend(q, k, v, layer)
        if self._attention is None:
            return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
        pool: Any = self.token_to_kv_pool
        if save_kv_cache and k is not None:
            # Before the attention: new rows are keys of each other, by slot like all others.
            slots = KVWriteLoc(forward_batch.out_cache_loc, None)
            pool.set_kv_buffer(layer, slots, k, v, *self._kv_write_scales(layer))
        keys, values = pool.get_kv_buffer(layer.layer_id)
        scales = Scales(layer.scaling, layer.logit_cap, layer.k_scale_float, layer.v_scale_float)
        query = q.contiguous().view(-1, layer.tp_q_head_num, layer.head_dim)
        output = self._attention.run(query, keys, values, scales)
        self._keepers.run(layer, query)
        return output.view(-1, layer.tp_q_head_num * layer.head_dim)

    def _make_attention(self, forward_batch: Any, dependencies: DependencyBatch) -> BatchAttention:
        steps = [
            PlainStep(num_prefix, num_new) if step is None else step
            for step, num_prefix, num_new in zip(
                dependencies.steps,
                forward_batch.extend_prefix_lens_cpu,
                forward_batch.extend_seq_lens_cpu,
                strict=True,
            )
        ]
        planner: Any = self.indices_updater_prefill
        heads = Heads(
            planner.num_qo_heads,
            planner.num_kv_heads,
            planner.head_dim,
            planner.q_data_type,
            planner.data_type,
        )

        def make_call(call: Call) -> FlashInferCall:
            slots = find_slots(call, self._rows, forward_batch.req_pool_indices)
            return FlashInferCall(self._wrappers.take(call.kind), call, slots, heads)

        self._wrappers.start()
        plan = plan_batch(steps, self._plan or choose_plan(steps))
        return BatchAttention(plan, make_call, _merge, self._rows.device)

    def _make_wrapper(self, kind: Kind) -> Any:
        stock = type(self.prefill_wrappers_paged[0])
        return stock(self.workspace_buffer, "NHD", backend=self.prefill_backend)


def _merge(
    first: torch.Tensor, first_lse: torch.Tensor, second: torch.Tensor, second_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    output, lse = _safe_merge_state(first, first_lse, second, second_lse)
    assert lse is not None
    return output, lse
