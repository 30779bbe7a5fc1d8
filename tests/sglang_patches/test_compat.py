# SPDX-License-Identifier: Apache-2.0
"""What differs between SGLang's releases is touched in one module only."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("sglang")

from sglang.srt.managers.scheduler import Scheduler

import sglang_patches
from sglang_patches import compat
from sglang_patches.requests.state import Handle

pytestmark = pytest.mark.sglang

PACKAGE = Path(sglang_patches.__file__).parent
MOVED = {"req_pool_idx", "cache_protected_len", "prefix_indices", "last_node"}
"""Fields of a request that 0.5.23 has elsewhere."""


def fields_touched(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_fields_that_move_are_touched_in_compat_only() -> None:
    files = {file for file in PACKAGE.rglob("*.py") if fields_touched(file) & MOVED}
    assert files == {PACKAGE / "compat.py"}


def test_every_way_out_of_the_waiting_queue_is_there() -> None:
    assert all(callable(getattr(Scheduler, name)) for name in compat.ABORT_FUNCTIONS)


def test_a_request_holds_one_handle_and_a_match_carries_it() -> None:
    first, second = Handle([]), Handle([])
    req = SimpleNamespace(last_node=first)
    compat.hold(req, second)
    assert compat.held_by(req) is second
    slots = torch.arange(3)
    result = compat.match_result(slots, second, 5)
    assert result.device_indices is slots
    assert result.best_match_node is second
    assert result.host_hit_length == 5
