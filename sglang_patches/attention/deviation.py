# SPDX-License-Identifier: Apache-2.0
"""Keys of the second layer under full view, beside a forward pass, and how far reused ones deviate.

The model's own body runs over system and context, with an attention that writes to no pool, and is
left where the second layer asks for its attention: it has made its keys by then (CacheBlend). So
it works for every model whose layers call the attention backend, and costs one layer.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sglang_patches.compat import batch_beside, tp_group
from sglang_patches.forward import DependencyBatch
from sglang_patches.requests.deviations import DeviatingRows

logger = logging.getLogger("depcache")


class _FoundKeys(Exception):  # noqa: N818 -- no error
    """Leaves the model's body in its second layer."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


class DeviationKeeper:
    """Keeps the deviations of a batch's requests, where any asks for them.

    runner     SGLang's ModelRunner
    is_beside  the model's body runs beside the forward pass: its attention is `attend`
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._work: list[tuple[DeviatingRows, Tensor, Tensor]] = []
        self._second_layer = -1
        self.is_beside = False

    def start(self, dependencies: DependencyBatch | None, forward_batch: Any) -> None:
        """Computes the keys under full view, before the first layer of a forward pass."""
        self._work = []
        if dependencies is None or not dependencies.deviating:
            return
        pool = self._runner.token_to_kv_pool
        self._second_layer = (getattr(pool, "start_layer", 0) or 0) + 1
        rows: Tensor = self._runner.req_to_token_pool.req_to_token
        for each in dependencies.deviating:
            # The request is told that there are no scores, and the batch goes on.
            try:
                keys = self._compute_keys(each.deviations.tokens, forward_batch)
            except Exception:
                logger.exception("the keys of the second layer could not be computed by themselves")
                continue
            key_rows = torch.from_numpy(each.key_rows).to(rows.device)
            slots = rows[forward_batch.req_pool_indices[each.request]][key_rows]
            inside = keys[each.deviations.forest.system_len :]
            self._work.append((each, slots.to(torch.int64), inside))

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, layer: Any) -> Tensor:
        """The attention of the body that runs beside: each token sees all before it.

        query         (num_tokens, num_heads * head_dim)
        keys, values  (num_tokens, num_kv_heads, head_dim)
        """
        if layer.layer_id == self._second_layer:
            raise _FoundKeys(keys)
        if layer.logit_cap:
            raise RuntimeError(
                f"the first layer has a soft cap on its attention, {layer.logit_cap}, and the pass "
                "beside has none"
            )
        num_tokens = len(query)
        queries = query.view(num_tokens, layer.tp_q_head_num, -1)
        # (1, num_heads, num_tokens, head_dim)
        queries, keys, values = (each.transpose(0, 1)[None] for each in (queries, keys, values))
        output = scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=layer.scaling, enable_gqa=True
        )
        return output[0].transpose(0, 1).reshape(num_tokens, -1)

    def run(self, layer: Any) -> None:
        """Keeps the deviations, once the second layer's keys are in the pool.

        layer  SGLang's RadixAttention
        """
        if not self._work or layer.layer_id != self._second_layer:
            return
        pool: Tensor = self._runner.token_to_kv_pool.get_key_buffer(layer.layer_id)
        ranks = tp_group(self._runner)
        for each, slots, keys in self._work:
            differ = keys.double() - pool[slots].double()
            sums = differ.square().sum((1, 2))
            if ranks.world_size > 1:  # each has some of the heads
                sums = ranks.all_reduce(sums)
            each.deviations.sums = sums

    def _compute_keys(self, tokens: Any, forward_batch: Any) -> Tensor:
        device = forward_batch.input_ids.device
        ids = torch.from_numpy(tokens).to(forward_batch.input_ids)
        positions = torch.arange(len(ids), device=device).to(forward_batch.positions)
        self.is_beside = True
        try:
            self._runner.model.model(ids, positions, batch_beside(forward_batch, ids, positions))
        except _FoundKeys as found:
            return found.keys
        finally:
            self.is_beside = False
        raise RuntimeError("the model's body has no second layer of attention")
