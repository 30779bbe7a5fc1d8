# SPDX-License-Identifier: Apache-2.0
"""What a question gives the keys of its context, captured at the last layer of a forward pass.

The queries of the question meet the last layer's keys here, in a product beside the attention.
Where it has seen the system alone, these are the keys of the context (FusionRAG, section 3.2), else
all keys before it. They are gathered by slot and turned from where they were computed to where they
stand in the flat prompt. Where the chunks in focus are wanted, it is done in every layer
(Cache-Craft, algorithm 1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from depcache.position.shift import shift_keys
from sglang_patches.attention.copies import find_rope
from sglang_patches.compat import tp_group
from sglang_patches.forward import DependencyBatch
from sglang_patches.requests.scoring import Scores

MAX_WEIGHTS = 2**24
"""Most attention weights at once: longer questions are taken in parts. 64 MiB in float32."""


class ScoreKeeper:
    """Adds to the scores of a batch's requests, where there are any.

    runner  SGLang's ModelRunner
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._rope: Any = None
        self._work: list[tuple[Scores, slice, Tensor, Tensor, Tensor | None]] = []
        self._last_layer = -1

    def start(self, dependencies: DependencyBatch | None, forward_batch: Any) -> None:
        """Looks up the slots of a forward pass, before its first layer."""
        self._work = []
        if dependencies is None or not dependencies.scored:
            return
        pool = self._runner.token_to_kv_pool
        self._last_layer = (getattr(pool, "start_layer", 0) or 0) + pool.layer_num - 1
        rows: Tensor = self._runner.req_to_token_pool.req_to_token
        for each in dependencies.scored:
            # One transfer: on a GPU the host waits for each.
            first = each.scores.keys.start
            placed = np.arange(first, first + len(each.key_rows))
            numbers = np.stack((each.key_rows, each.scores.homes[placed], placed))
            numbers = torch.from_numpy(numbers).to(rows.device)
            slots = rows[forward_batch.req_pool_indices[each.request]][numbers[0]]
            seen = each.num_seen
            num_seen = None if seen is None else torch.from_numpy(seen).to(rows.device)
            slots = slots.to(torch.int64)
            self._work.append((each.scores, each.queries, slots, numbers[1:], num_seen))

    def run(self, layer: Any, query: Tensor) -> None:
        """Adds the scores, once the layer's new keys are in the pool.

        layer  SGLang's RadixAttention
        query  (num_new, num_heads * head_dim) of the batch, turned
        """
        is_last = layer.layer_id == self._last_layer
        work = [each for each in self._work if is_last or each[0].by_score.has_focus]
        if not work:
            return
        if self._rope is None:
            self._rope = find_rope(self._runner)
        rope = self._rope
        pool: Tensor = self._runner.token_to_kv_pool.get_key_buffer(layer.layer_id)
        query = query.reshape(len(query), layer.tp_q_head_num, -1)
        for scores, queries, slots, (homes, placed), num_seen in work:
            keys = shift_keys(
                pool[slots].float(),
                homes,
                placed,
                rope.cos_sin_cache,
                rotary_dim=rope.rotary_dim,
                is_neox=rope.is_neox_style,
            )
            sums = sum_weights(query[queries], keys, layer.scaling, layer.logit_cap, num_seen)
            sums = sums[scores.context]
            ranks = tp_group(self._runner)
            if ranks.world_size > 1:  # each has some of the heads
                sums = ranks.all_reduce(sums)
            num_rows = queries.stop - queries.start if is_last else 0
            scores.add(layer.layer_id, sums, num_rows)


def sum_weights(
    query: Tensor,
    keys: Tensor,
    scale: float,
    logit_cap: float = 0.0,
    num_seen: Tensor | None = None,
) -> Tensor:
    """Sums the attention weights that each key gets, over rows and heads.

    query      (num_rows, num_heads, head_dim)
    keys       (num_keys, num_kv_heads, head_dim); no row sees anything else
    scale      of the products
    logit_cap  the model's soft cap on them, 0 for none
    num_seen   (num_rows,) int64, how many of the keys each row sees; None: all see all

    Returns (num_keys,) float64, which add up to num_rows * num_heads. Computed in float32, because
    the order of bfloat16 weights would be that of their rounding.
    """
    num_rows, num_heads, head_dim = query.shape
    num_keys, num_kv_heads, _ = keys.shape
    # Head h reads the keys of head h // group.
    queries = query.float().view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    queries = queries.transpose(0, 1).reshape(num_kv_heads, -1, head_dim)
    columns = keys.float().permute(1, 2, 0)
    sums = torch.zeros(num_keys, dtype=torch.float64, device=query.device)
    index = torch.arange(num_keys, device=query.device)
    # As the queries are: all heads of a group, row by row.
    seen = None if num_seen is None else num_seen.repeat_interleave(num_heads // num_kv_heads)
    num_at_once = max(1, MAX_WEIGHTS // (num_kv_heads * max(num_keys, 1)))
    for at, part in enumerate(queries.split(num_at_once, dim=1)):
        products = part @ columns * scale
        if logit_cap:
            products = logit_cap * torch.tanh(products / logit_cap)
        if seen is not None:
            of_part = seen[at * num_at_once :][: part.shape[1], None]
            products.masked_fill_(index >= of_part, float("-inf"))
        sums += products.softmax(-1).sum((0, 1), dtype=torch.float64)
    return sums
