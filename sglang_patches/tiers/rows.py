# SPDX-License-Identifier: Apache-2.0
"""What one token's KV is, in every tier."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowShape:
    """One token's row in the pool: 2 (keys, values) x layers x heads x channels."""

    num_layers: int
    num_heads: int
    head_dim: int
    dtype: str
    element_bytes: int
    start_layer: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of one token."""
        return 2 * self.num_layers * self.num_heads * self.head_dim * self.element_bytes
