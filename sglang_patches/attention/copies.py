# SPDX-License-Identifier: Apache-2.0
"""What happens before the first layer: rows loaded from other tiers, and hits that moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from depcache.errors import ConfigError
from depcache.position.shift import shift_keys
from sglang_patches.forward import DependencyBatch, merge_copies
from sglang_patches.requests.state import PendingCopy


class RowCopier:
    """Brings the rows of a batch into their slots, in every layer.

    runner  SGLang's ModelRunner
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._rope: Any = None
        self._layers: Any = None

    def run(self, dependencies: DependencyBatch | None) -> None:
        """Load first, then copy what sits at another position: it may have just been loaded."""
        if dependencies is None:
            return
        if dependencies.load is not None:
            dependencies.load.run()
        if dependencies.copies:
            self._copy_shifted(merge_copies(dependencies.copies))

    def _copy_shifted(self, copy: PendingCopy) -> None:
        rope = self._rotary_embedding()
        device = rope.cos_sin_cache.device
        # One transfer: on a GPU the host waits for each.
        rows = np.stack((copy.sources, copy.targets, copy.homes, copy.placed))
        sources, targets, homes, placed = torch.from_numpy(rows).to(device)
        table = rope.cos_sin_cache
        how: Any = {"rotary_dim": rope.rotary_dim, "is_neox": rope.is_neox_style}
        if table.is_cuda:
            from sglang_patches.attention.shift_kernel import Layers, move_rows

            if self._layers is None:
                self._layers = Layers.make(*self._buffers())
            move_rows(self._layers, sources, targets, homes, placed, table, **how)
            return
        for keys, values in zip(*self._buffers(), strict=True):
            keys[targets] = shift_keys(keys[sources], homes, placed, table, **how)
            values[targets] = values[sources]

    def _buffers(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Keys and values of each layer."""
        pool = self._runner.token_to_kv_pool
        first = getattr(pool, "start_layer", 0) or 0
        layers = range(first, first + pool.layer_num)
        keys = [pool.get_key_buffer(layer) for layer in layers]
        return keys, [pool.get_value_buffer(layer) for layer in layers]

    def _rotary_embedding(self) -> Any:
        if self._rope is None:
            self._rope = find_rope(self._runner)
        return self._rope


def find_rope(runner: Any) -> Any:
    """Returns the rotary embedding of the runner's model. Raises ConfigError where it has none."""
    for module in runner.model.modules():
        if hasattr(module, "cos_sin_cache") and hasattr(module, "rotary_dim"):
            return module
    raise ConfigError(
        "the model has no rotary embedding, so cached keys cannot be moved: use the layout 'tree'"
    )
