# SPDX-License-Identifier: Apache-2.0
"""What the rows of a flat prompt give each other, captured in every layer of a forward pass.

The queries that are computed meet all keys before them once more, beside the attention, whose own
weights nobody can see. That costs about as much as the attention's first product, and is done for
requests of the selector `stored` alone.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import torch
from torch import Tensor

from sglang_patches.attention.scores import MAX_WEIGHTS
from sglang_patches.compat import tp_group
from sglang_patches.forward import DependencyBatch
from sglang_patches.requests.masses import MassRows

CACHED_WEIGHTS = 2**20
"""Most attention weights at once on a CPU, whose caches hold them: 5 times as fast as more."""

MIN_QUERIES = 32
"""Fewer rows at once would be many small products."""


class MassKeeper:
    """Adds to the sums of a batch's requests, where there are any.

    runner  SGLang's ModelRunner
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._work: list[tuple[MassRows, Tensor, Tensor]] = []

    def start(self, dependencies: DependencyBatch | None, forward_batch: Any) -> None:
        """Looks up the slots of a forward pass, before its first layer."""
        self._work = []
        if dependencies is None:
            return
        rows: Tensor = self._runner.req_to_token_pool.req_to_token
        for each in dependencies.weighed:
            slots = rows[forward_batch.req_pool_indices[each.request], : len(each.key_rows)]
            starts = torch.tensor(each.masses.starts, device=rows.device)
            index = torch.arange(len(each.key_rows), device=rows.device)
            row_of = torch.searchsorted(starts, index, right=True)  # 0 for the system
            self._work.append((each, slots.to(torch.int64), row_of))

    def run(self, layer: Any, query: Tensor) -> None:
        """Adds the sums of a layer, once its new keys are in the pool.

        layer  SGLang's RadixAttention
        query  (num_new, num_heads * head_dim) of the batch, turned
        """
        if not self._work:
            return
        pool: Tensor = self._runner.token_to_kv_pool.get_key_buffer(layer.layer_id)
        query = query.reshape(len(query), layer.tp_q_head_num, -1)
        ranks = tp_group(self._runner)
        num_heads = layer.tp_q_head_num * ranks.world_size
        for each, slots, row_of in self._work:
            sums = sum_masses(
                query[each.queries],
                pool[slots],
                each.first,
                row_of,
                len(each.masses.starts),
                layer.scaling,
                layer.logit_cap,
            )
            if ranks.world_size > 1:  # each has some of the heads
                sums = ranks.all_reduce(sums)
            sums = sums / num_heads
            each.masses.add(layer.layer_id, each.first, sums[:, :-1], sums[:, -1])


def sum_masses(
    query: Tensor,
    keys: Tensor,
    first: int,
    row_of: Tensor,
    num_rows: int,
    scale: float,
    logit_cap: float = 0.0,
) -> Tensor:
    """Sums the attention weights that each token gives each row, over heads.

    query      (num_queries, num_heads, head_dim) of the tokens from index `first` on
    keys       (first + num_queries, num_kv_heads, head_dim); a token sees those up to its own
    row_of     (first + num_queries,) int64 the row of each key, counted from 1; 0 for none
    scale      of the products
    logit_cap  the model's soft cap on them, 0 for none

    Returns (num_queries, num_rows + 1) float32; the last column is what each gives itself.
    """
    num_queries, num_heads, head_dim = query.shape
    num_keys, num_kv_heads, _ = keys.shape
    group = num_heads // num_kv_heads
    # Head h reads the keys of head h // group.
    queries = query.float().view(num_queries, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    columns = keys.float().permute(1, 2, 0).unsqueeze(1)
    index = torch.arange(num_keys, device=query.device)
    is_of = torch.nn.functional.one_hot(row_of, num_rows + 1).float()
    most = (CACHED_WEIGHTS if query.device.type == "cpu" else MAX_WEIGHTS) // num_heads
    found: list[Tensor] = []
    at = first
    while at < num_keys:
        # So many queries that they and their keys, those before them and themselves, make `most`.
        num = (isqrt(at * at + 4 * most) - at) // 2
        num = max(num, min(MIN_QUERIES, MAX_WEIGHTS // (num_heads * num_keys)), 1)
        stop = min(num_keys, at + num)
        products = queries[:, :, at - first : stop - first] * scale @ columns[..., :stop]
        if logit_cap:
            products = logit_cap * torch.tanh(products / logit_cap)
        own = index[at:stop]
        products[..., at:].masked_fill_(own > own[:, None], float("-inf"))
        weights = products.softmax(-1).sum((0, 1))
        found += [torch.cat(((weights @ is_of[:stop])[:, 1:], weights.gather(1, own[:, None])), 1)]
        at = stop
    return torch.cat(found)
