# SPDX-License-Identifier: Apache-2.0
"""What the rows of a flat prompt give the rows before them: `inter` and `intra` of Cache-Craft.

Kept while such a prompt is computed, for `depcache.select.variants`. A row that was cached is not
computed, so nothing is told of it. In mean over heads and layers (Cache-Craft, eq. 3, 4, 10).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

MASSES = "depcache_masses"
"""Key of `custom_params`, see `sglang_patches.requests.inner`: where the rows of the context begin,
and where the last of them ends; what follows is not looked at.

Also where the report of such a request has what `RowMasses.told` says."""

OVERHEADS = "depcache_overheads"
"""Key of `custom_params`, see `sglang_patches.requests.inner`: per tree the share of it that is
computed again, where each is the copy that needs least."""


@dataclass(frozen=True, slots=True, eq=False)
class MassRows:
    """Rows of the context in one forward pass.

    masses    where they are added
    request   number of the request in its batch
    queries   the rows, among all that the batch computes
    first     index of the first of them in the prompt
    key_rows  (first + num_queries,) int64, the request's row of each token up to the last of them
    """

    masses: RowMasses
    request: int
    queries: slice
    first: int
    key_rows: np.ndarray = field(repr=False)


@dataclass(slots=True, eq=False)
class RowMasses:
    """What the tokens of a context have given its rows so far.

    starts      index of the first token of each row
    stop        index behind the last row
    to_rows     (stop, num_rows) float32 on the device, sums over layers; None before the first
    itself      (stop,) the same, what each token gave itself
    layers      those that were added
    computed    (stop,) bool, tokens that are in the sums
    """

    starts: tuple[int, ...]
    stop: int
    to_rows: Tensor | None = field(default=None, repr=False)
    itself: Tensor | None = field(default=None, repr=False)
    layers: set[int] = field(default_factory=set[int])
    computed: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.computed = np.zeros(self.stop, bool)

    def restart(self) -> RowMasses:
        """Returns the same before its first row: a pass that still runs adds to the old one."""
        return RowMasses(self.starts, self.stop)

    def rows(
        self, order: np.ndarray, num_prefix: int, num_new: int, request: int, start: int
    ) -> MassRows | None:
        """Returns the context's rows among [num_prefix, num_prefix + num_new); None without any.

        order    (num_tokens,) int64, index of each row: a flat prompt is in its own order
        request  number of the request in its batch
        start    where its new rows begin, among all that the batch computes
        """
        first, stop = num_prefix, min(num_prefix + num_new, self.stop)
        if first >= stop:
            return None
        assert (order[:stop] == np.arange(stop)).all()
        return MassRows(self, request, slice(start, start + stop - first), first, np.arange(stop))

    def add(self, layer: int, first: int, to_rows: Tensor, itself: Tensor) -> None:
        """Adds what the tokens from `first` on give in a layer, in mean over heads.

        to_rows  (num_queries, num_rows), what each gives all tokens of a row, itself among them
        itself   (num_queries,)
        """
        if self.to_rows is None or self.itself is None:
            self.to_rows = to_rows.new_zeros((self.stop, len(self.starts)))
            self.itself = to_rows.new_zeros(self.stop)
        stop = first + len(itself)
        self.to_rows[first:stop] += to_rows
        self.itself[first:stop] += itself
        self.layers.add(layer)
        self.computed[first:stop] = True

    def told(self) -> list[dict[str, Any] | None]:
        """Returns per row {"inter", "intra", "order"}, see `depcache.select.variants.Masses`.

        None for a row of which a token was not computed. Waits for the device.
        """
        if self.to_rows is None or self.itself is None:
            return [None] * len(self.starts)
        to_rows = self.to_rows.double().cpu().numpy() / len(self.layers)
        itself = self.itself.double().cpu().numpy() / len(self.layers)
        found: list[dict[str, Any] | None] = []
        for row, (start, stop) in enumerate(
            zip(self.starts, [*self.starts[1:], self.stop], strict=True)
        ):
            if not self.computed[start:stop].all():
                found.append(None)
                continue
            own = to_rows[start:stop]
            found.append(
                {
                    "inter": own[:, :row].sum(0).tolist(),
                    "intra": float(own[:, row].sum() - itself[start:stop].sum()),
                    "order": np.argsort(-own[:, :row].sum(1), kind="stable").tolist(),
                }
            )
        return found


def take_masses(told: Any) -> RowMasses | None:
    """Returns the sums that the scheduler is told to keep; None without any."""
    return None if told is None else RowMasses(tuple(told[:-1]), told[-1])
