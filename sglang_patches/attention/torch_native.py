# SPDX-License-Identifier: Apache-2.0
"""SGLang's `torch_native` backend, with dependency attention and, on a CPU, new rows only.

The stock backend pads the queries to the whole row and computes the full square even for
cached prefixes. Here a prefill computes its new rows alone, for plain requests too, so that
on a CPU a comparison with stock SGLang compares caches and not attention loops.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

from depcache.config import Config
from sglang_patches.attention.copies import RowCopier
from sglang_patches.attention.keepers import Keepers
from sglang_patches.attention.torch_plans import WORK_BY_PLAN, AttentionWork, CausalWork
from sglang_patches.cpu_platform import is_cpu, set_cpu_threads
from sglang_patches.forward import get_batch


class DependencyTorchBackend(TorchNativeAttnBackend):
    """Runs the batch's `DependencyBatch`; batches without one run as the option says."""

    def __init__(self, runner: Any, config: Config) -> None:
        super().__init__(runner)
        if is_cpu(runner):
            set_cpu_threads(config.cpu_threads, runner.server_args.tp_size)
        self._runner = runner
        self._plan = config.attention_plan
        self._new_rows_only = is_cpu(runner) and config.cpu_attention == "new_rows"
        self._work: list[AttentionWork] | None = None
        self._copier = RowCopier(runner)
        self._keepers = Keepers(runner)

    def init_forward_metadata(self, forward_batch: Any) -> None:
        super().init_forward_metadata(forward_batch)
        self._work = None
        dependencies = get_batch(forward_batch)
        self._copier.run(dependencies)
        self._keepers.start(dependencies, forward_batch)
        if not forward_batch.forward_mode.is_extend() or forward_batch.encoder_lens is not None:
            return
        if dependencies is None and not self._new_rows_only:
            return
        num_requests = forward_batch.batch_size
        steps = [None] * num_requests if dependencies is None else dependencies.steps
        rows: torch.Tensor = self._runner.req_to_token_pool.req_to_token
        make_work = WORK_BY_PLAN[self._plan]
        self._work = []
        for i, step in enumerate(steps):
            num_rows = (
                forward_batch.extend_prefix_lens_cpu[i] + forward_batch.extend_seq_lens_cpu[i]
            )
            slots = rows[forward_batch.req_pool_indices[i], :num_rows].to(torch.int64)
            self._work.append(CausalWork(slots) if step is None else make_work(step, slots))
        self._num_new = list(forward_batch.extend_seq_lens_cpu)

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
        output = super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
        self._keepers.run(layer, q)
        return output

    def _run_sdpa_forward_extend(
        self,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        *args: Any,
        scaling: float | None = None,
        causal: bool = False,
        is_cross_attn: bool = False,
        sliding_window_size: int | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        is_plain_decoder = causal and not is_cross_attn and sliding_window_size is None
        if self._work is None or not is_plain_decoder:
            return super()._run_sdpa_forward_extend(
                query,
                output,
                k_cache,
                v_cache,
                *args,
                scaling=scaling,
                causal=causal,
                is_cross_attn=is_cross_attn,
                sliding_window_size=sliding_window_size,
                **kwargs,
            )
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        start = 0
        for work, num_new in zip(self._work, self._num_new, strict=True):
            rows = slice(start, start + num_new)
            work.run(query[rows], k_cache, v_cache, output[rows], scale)
            start += num_new
        return output
