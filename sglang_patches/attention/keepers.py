# SPDX-License-Identifier: Apache-2.0
"""What is kept of a forward pass's queries and keys, beside its attention, where requests ask."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sglang_patches.attention.deviation import DeviationKeeper
from sglang_patches.attention.masses import MassKeeper
from sglang_patches.attention.scores import ScoreKeeper
from sglang_patches.forward import DependencyBatch


class Keepers:
    """Scores, deviations and masses of a batch's requests; nothing where none asks.

    runner  SGLang's ModelRunner
    """

    def __init__(self, runner: Any) -> None:
        self._scores = ScoreKeeper(runner)
        self._deviations = DeviationKeeper(runner)
        self._masses = MassKeeper(runner)

    @property
    def is_beside(self) -> bool:
        """Whether the model's body runs beside the forward pass: its attention is `attend`."""
        return self._deviations.is_beside

    def start(self, dependencies: DependencyBatch | None, forward_batch: Any) -> None:
        """Looks up what a forward pass needs, before its first layer."""
        self._scores.start(dependencies, forward_batch)
        self._deviations.start(dependencies, forward_batch)
        self._masses.start(dependencies, forward_batch)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, layer: Any) -> Tensor:
        """See `DeviationKeeper.attend`."""
        return self._deviations.attend(query, keys, values, layer)

    def run(self, layer: Any, query: Tensor) -> None:
        """Keeps what a layer says, once its new keys are in the pool.

        layer  SGLang's RadixAttention
        query  (num_new, num_heads * head_dim) of the batch, turned; or with the heads apart
        """
        self._scores.run(layer, query)
        self._deviations.run(layer)
        self._masses.run(layer, query)
