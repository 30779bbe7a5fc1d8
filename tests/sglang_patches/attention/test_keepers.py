# SPDX-License-Identifier: Apache-2.0
"""A batch costs what its requests ask for: nothing, or each keeper what is its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sglang_patches.attention.keepers import Keepers
from sglang_patches.forward import DependencyBatch
from sglang_patches.requests.masses import RowMasses

LAYER: Any = SimpleNamespace(layer_id=0, tp_q_head_num=1, scaling=1.0, logit_cap=0.0)


class Untouched:
    """Fails when anything of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


@pytest.mark.parametrize("dependencies", [None, DependencyBatch([], [])])
def test_who_asks_for_nothing_costs_nothing(dependencies: DependencyBatch | None) -> None:
    keepers = Keepers(SimpleNamespace(req_to_token_pool=SimpleNamespace(req_to_token=None)))
    keepers.start(dependencies, Untouched())
    keepers.run(LAYER, torch.zeros(2, 4))
    assert not keepers.is_beside


def test_what_one_pass_kept_is_not_kept_by_the_next() -> None:
    keys = torch.randn(8, 1, 4)
    runner = SimpleNamespace(
        tp_group=SimpleNamespace(world_size=1),
        req_to_token_pool=SimpleNamespace(req_to_token=torch.arange(8)[None]),
        token_to_kv_pool=SimpleNamespace(get_key_buffer=lambda layer: keys),
    )
    keepers, masses = Keepers(runner), RowMasses((1, 3), 5)
    rows = masses.rows(np.arange(6), 0, 6, 0, 0)
    assert rows is not None
    keepers.start(
        DependencyBatch([None], [], weighed=[rows]),
        SimpleNamespace(req_pool_indices=torch.tensor([0])),
    )
    keepers.run(LAYER, torch.randn(6, 4))
    assert masses.computed.all() and masses.layers == {0}
    keepers.start(None, Untouched())
    keepers.run(SimpleNamespace(**{**vars(LAYER), "layer_id": 1}), torch.randn(6, 4))
    assert masses.layers == {0}
