# SPDX-License-Identifier: Apache-2.0
"""The Triton kernel, interpreted on a CPU, moves rows as `shift_keys` and a copy do."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from depcache.errors import ConfigError
from tests.helpers.moves import assert_rows_move_as_by_torch, make_table

pytestmark = pytest.mark.sglang
NAME = "sglang_patches.attention.shift_kernel"


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """The module, made for the interpreter: Triton decides when a kernel is defined."""
    pytest.importorskip("triton")
    before = sys.modules.pop(NAME, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield importlib.import_module(NAME)
    sys.modules.pop(NAME)
    if before is not None:
        sys.modules[NAME] = before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(
    ("num_heads", "head_dim", "rotary_dim", "factor"),
    [(2, 16, 16, 1.0), (3, 16, 8, 1.0), (1, 24, 12, 1.0), (4, 8, 8, 1.4)],
)
def test_rows_move_as_by_torch(
    kernel: Any,
    dtype: torch.dtype,
    is_neox: bool,
    num_heads: int,
    head_dim: int,
    rotary_dim: int,
    factor: float,
) -> None:
    assert_rows_move_as_by_torch(
        kernel,
        shape=(40, num_heads, head_dim),
        num_rows=11,  # the last program has fewer rows than the others
        table=make_table(rotary_dim, 300, factor),
        dtype=dtype,
        is_neox=is_neox,
        atol=1e-6 if dtype is torch.float32 else 2e-2,
    )


def test_nothing_to_move_is_fine(kernel: Any) -> None:
    none = torch.empty(0, dtype=torch.int64)
    layers = kernel.Layers.make([torch.ones(4, 1, 8)], [torch.ones(4, 1, 8)])
    how = {"rotary_dim": 8, "is_neox": True}
    kernel.move_rows(layers, none, none, none, none, make_table(8, 300), **how)


def test_layers_that_differ_are_refused(kernel: Any) -> None:
    one, other = torch.ones(4, 1, 8), torch.ones(4, 2, 8)
    with pytest.raises(ConfigError, match="use the layout 'tree'"):
        kernel.Layers.make([one, other], [one, one])
    with pytest.raises(ConfigError, match="strides"):
        kernel.Layers.make(
            [one.transpose(0, 1).contiguous().transpose(0, 1)[:, :, ::2]] * 1, [one[:, :, ::2]]
        )
