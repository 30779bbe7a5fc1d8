# SPDX-License-Identifier: Apache-2.0
"""Attention by torch ops, with the log-sum-exp by which parts of it merge."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Causal attention skips the keys above the diagonal in blocks of this size. torch's kernel sums
# over blocks of KEY_BLOCK keys, and sums in another order for fewer than MIN_QUERIES queries.
QUERY_BLOCK = 1024
KEY_BLOCK = 512
MIN_QUERIES = 4


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention that also returns the log-sum-exp of the scores.

    query         (..., num_heads, num_queries, head_dim)
    keys, values  (..., num_kv_heads, num_keys, head_dim)
    mask          additive, broadcastable to (..., num_heads, num_queries, num_keys)

    Returns (..., num_heads, num_queries, head_dim) and float32 (..., num_heads, num_queries).
    """
    if query.device.type == "cpu":
        # torch's only attention on a CPU that returns the log-sum-exp; grouped heads too.
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, keys, values, 0.0, is_causal, attn_mask=mask, scale=scale
        )
    return attend_generic(query, keys, values, scale, mask, is_causal)


def attend_generic(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """`attend` in plain operations, for any device; quadratic in memory."""
    group = query.shape[-3] // keys.shape[-3]
    keys, values = keys.repeat_interleave(group, -3), values.repeat_interleave(group, -3)
    scores = (query @ keys.transpose(-1, -2)).float() * scale
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp().to(values.dtype) @ values, lse


def merge(first: Tensor, first_lse: Tensor, second: Tensor, second_lse: Tensor) -> Tensor:
    """Attention over the union of two key sets, from the attention over each (log-sum-exp)."""
    weight = torch.sigmoid(first_lse - second_lse).unsqueeze(-1)
    return (second + (first - second) * weight).to(first.dtype)


def attend_causal(
    query: Tensor, keys: Tensor, values: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Bottom-right causal attention of one request: the last query sees every key.

    Shapes as in `attend`. On a CPU every sum runs in the order in which SGLang's own attention
    runs it, which computes the queries of the cached rows as well; so the two agree bit for bit.
    """
    num_queries, num_keys = query.shape[-2], keys.shape[-2]
    num_prefix = num_keys - num_queries
    if num_prefix == 0:
        return attend(query, keys, values, scale, is_causal=True)
    attention = torch.empty_like(query)
    lse = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)
    tail = num_keys % _kernel_query_block(num_keys)
    body_stop = num_queries - min(tail, num_queries) if tail < MIN_QUERIES else num_queries
    for start in range(0, body_stop, QUERY_BLOCK):
        block = slice(start, min(start + QUERY_BLOCK, body_stop))
        # Blocks of keys are cut where they are for the whole request, or the sums would differ.
        seen = -(-(num_prefix + block.stop) // KEY_BLOCK) * KEY_BLOCK
        attention[..., block, :], lse[..., block] = _attend_causal_block(
            query[..., block, :],
            keys[..., :seen, :],
            values[..., :seen, :],
            scale,
            num_prefix + start,
        )
    if body_stop < num_queries:
        last = slice(body_stop, num_queries)
        attention[..., last, :], lse[..., last] = _attend_causal_tail(
            query[..., last, :], keys, values, scale, tail
        )
    return attention, lse


def _kernel_query_block(num_queries: int) -> int:
    """How many queries torch's CPU kernel takes at a time (aten, FlashAttentionKernel.cpp)."""
    if num_queries >= 768:
        return 256
    return 64 if num_queries >= 192 else 32


def _attend_causal_block(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, first_key: int
) -> tuple[Tensor, Tensor]:
    """Attention in which query i sees the keys [0, first_key + i], no block being a tail."""
    num_queries, num_keys = query.shape[-2], keys.shape[-2]
    remainder = num_queries % _kernel_query_block(num_queries)
    if 0 < remainder < MIN_QUERIES:
        query = _pad_front(query, MIN_QUERIES - remainder)
    padding = query.shape[-2] - num_queries
    # With the last query first, the mask's rows are one vector, each a step further along it:
    # the kernel reads it from the cache, and it costs about what the unmasked call costs.
    last_seen = first_key + num_queries - 1
    mask = torch.zeros(num_keys + query.shape[-2] - 1, dtype=query.dtype, device=query.device)
    mask[last_seen + 1 :] = -torch.inf
    mask = mask.as_strided((1, 1, query.shape[-2], num_keys), (0, 0, 1, 1))
    attention, lse = attend(query.flip(-2), keys, values, scale, mask=mask)
    return attention.flip(-2)[..., padding:, :], lse.flip(-1)[..., padding:]


def _attend_causal_tail(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, tail: int
) -> tuple[Tensor, Tensor]:
    """The same for the last queries, as the kernel's last block of `tail` < MIN_QUERIES."""
    num_queries, num_keys = query.shape[-2], keys.shape[-2]
    query = _pad_front(query, _kernel_query_block(1) + tail - num_queries)
    padding = query.shape[-2] - num_queries
    mask = torch.zeros(query.shape[-2], num_keys, dtype=query.dtype, device=query.device)
    mask[padding:] = torch.full_like(mask[padding:], -torch.inf).triu(num_keys - num_queries + 1)
    attention, lse = attend(query, keys, values, scale, mask=mask)
    return attention[..., padding:, :], lse[..., padding:]


def _pad_front(query: Tensor, num_rows: int) -> Tensor:
    return torch.cat([query[..., :1, :].expand(*query.shape[:-2], num_rows, -1), query], -2)


def gather(pool: Tensor, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns rows of a pool, (1, num_kv_heads, num_slots, head_dim)."""
    return pool.index_select(0, slots).to(dtype).transpose(0, 1).unsqueeze(0)


def heads_first(query: Tensor) -> Tensor:
    """Returns a view, from (num_queries, num_heads, head_dim) to (1, heads, queries, dim)."""
    return query.transpose(0, 1).unsqueeze(0)


def additive(mask: np.ndarray, like: Tensor) -> Tensor:
    """Returns 0 for True and -inf for False, (..., queries, keys) on the device of `like`."""
    hidden = ~torch.from_numpy(mask)
    return torch.zeros(mask.shape).masked_fill_(hidden, -torch.inf).to(like.device)
