# SPDX-License-Identifier: Apache-2.0
"""The mask of a batch of rows: dense for a CPU, a block mask for FlexAttention on a GPU.

Both are the rule of `Row`, said once, over whole tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def visible(
    i: torch.Tensor,
    j: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    task_starts: torch.Tensor,
) -> torch.Tensor:
    """bool: whether index i sees index j; starts and task_starts of i, ends of j. Broadcasts."""
    return (j <= i) & (j >= starts) & ((i < ends) | ((j < task_starts) & (i >= task_starts)))


def dense_mask(starts: torch.Tensor, ends: torch.Tensor, task_starts: torch.Tensor) -> torch.Tensor:
    """(num_rows, 1, num_tokens, num_tokens) bool, from (num_rows, num_tokens) each."""
    import torch

    index = torch.arange(starts.shape[1], device=starts.device)
    mask = visible(
        index[:, None],
        index[None, :],
        starts[:, :, None],
        ends[:, None, :],
        task_starts[:, :, None],
    )
    return mask[:, None]


def block_mask(starts: torch.Tensor, ends: torch.Tensor, task_starts: torch.Tensor) -> Any:
    """The same as a BlockMask of FlexAttention: blocks that nobody sees are not computed."""
    from torch.nn.attention.flex_attention import create_block_mask

    num_rows, num_tokens = starts.shape
    rule: Callable[..., torch.Tensor] = lambda b, h, i, j: visible(  # noqa: E731
        i, j, starts[b, i], ends[b, j], task_starts[b, i]
    )
    return create_block_mask(rule, num_rows, None, num_tokens, num_tokens, device=starts.device)
