# SPDX-License-Identifier: Apache-2.0
"""Hook on the making of a ForwardBatch: positions of dependency requests.

Why: positions are computed from row numbers, but a permuted row is not its position. They
must be right before a CUDA graph copies them into its buffers, which is before an attention
backend is asked; and this is the last place that sees the requests of the batch.
Unnecessary when SGLang lets a prefix cache or a request provide positions.
"""

from __future__ import annotations

from typing import Any

from sglang_patches.contract import Batch, ForwardBatch


def set_positions(
    forward_batch: ForwardBatch, cls: type, batch: Batch, *args: Any, **kwargs: Any
) -> None:
    """Positions, steps and copies for a batch of our cache; nothing for a stock one."""
    if getattr(batch.tree_cache, "is_depcache", False):
        from sglang_patches.forward import prepare_forward

        prepare_forward(forward_batch, batch)


HOOKS = {
    "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new": ("AFTER", set_positions)
}
