# SPDX-License-Identifier: Apache-2.0
"""A tier whose copies a test makes itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from depcache.cache import Node, Tier, TierCopies


class Keeper(Tier):
    """Calls `keep_some` with the victims of an eviction, (node, slots) each."""

    def __init__(
        self, copies: TierCopies, keep_some: Callable[[list[tuple[Node, Any]]], Any]
    ) -> None:
        super().__init__(copies)
        self._keep_some = keep_some

    def keep(self, leaving: list[tuple[Node, Any]]) -> list[tuple[Node, Any]]:
        self._keep_some(leaving)
        return []
