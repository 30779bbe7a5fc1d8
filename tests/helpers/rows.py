# SPDX-License-Identifier: Apache-2.0
"""A request's row in `req_to_token`, where the installed SGLang keeps it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def set_row(req: Any, index: int | None) -> None:
    """Give a request of SGLang's a row, or take it away."""
    from sglang_patches.compat import HAS_CHECKPOINTS

    holder = req.kv if HAS_CHECKPOINTS else req
    holder.req_pool_idx = index


def row_holder(index: int) -> Any:
    """What stands for a request that has a row and nothing else."""
    return SimpleNamespace(req_pool_idx=index, kv=SimpleNamespace(req_pool_idx=index))
