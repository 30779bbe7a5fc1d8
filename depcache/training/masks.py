# SPDX-License-Identifier: Apache-2.0
"""The mask of a batch of rows: dense for a CPU, a block mask for FlexAttention on a GPU.

Both are the rule of `Row`, over whole tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Batch = Mapping[str, torch.Tensor]
    """A padded batch, see `depcache.training.packing.pad`."""


def visible(
    i: torch.Tensor,
    j: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    task_starts: torch.Tensor,
) -> torch.Tensor:
    """bool: whether index i sees index j; starts and task_starts of i, ends of j. Broadcasts.

    Without what a joined tree sees besides.
    """
    return (j <= i) & (j >= starts) & ((i < ends) | ((j < task_starts) & (i >= task_starts)))


def dense_mask(batch: Batch) -> torch.Tensor:
    """(num_rows, 1, num_tokens, num_tokens) bool."""
    import torch

    starts, ends, task_starts = batch["starts"], batch["ends"], batch["task_starts"]
    index = torch.arange(starts.shape[1], device=starts.device)
    mask = visible(
        index[:, None],
        index[None, :],
        starts[:, :, None],
        ends[:, None, :],
        task_starts[:, :, None],
    )
    if _has_joins(batch):
        row = torch.arange(len(starts), device=starts.device)[:, None, None]
        mask |= batch["sees"][row, batch["trees"][:, :, None], batch["parts"][:, None, :]]
    return mask[:, None]


def block_mask(batch: Batch) -> Any:
    """The same as a BlockMask of FlexAttention: blocks that nobody sees are not computed."""
    from torch.nn.attention.flex_attention import create_block_mask

    starts, ends, task_starts = batch["starts"], batch["ends"], batch["task_starts"]
    sees, trees, parts = batch["sees"], batch["trees"], batch["parts"]

    def plain(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return visible(i, j, starts[b, i], ends[b, j], task_starts[b, i])

    def joined(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return plain(b, h, i, j) | sees[b, trees[b, i], parts[b, j]]

    num_rows, num_tokens = starts.shape
    rule = joined if _has_joins(batch) else plain
    return create_block_mask(rule, num_rows, None, num_tokens, num_tokens, device=starts.device)


def _has_joins(batch: Batch) -> bool:
    return batch["sees"].shape[1] > 1
