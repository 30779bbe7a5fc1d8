# SPDX-License-Identifier: Apache-2.0
"""What differs between SGLang's releases is touched in one module only."""

from __future__ import annotations

import ast
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("sglang")

from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.sampling.sampling_params import SamplingParams

import sglang_patches
from sglang_patches import compat
from sglang_patches.requests.state import Handle
from tests.helpers.rows import set_row

pytestmark = pytest.mark.sglang

PACKAGE = Path(sglang_patches.__file__).parent
MOVED = {"req_pool_idx", "cache_protected_len", "prefix_indices", "last_node", "extend_range"}
"""Fields of a request that 0.5.23 has elsewhere."""


def fields_touched(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_fields_that_move_are_touched_in_compat_only() -> None:
    built = PACKAGE / "build"  # what pip leaves
    sources = (file for file in PACKAGE.rglob("*.py") if built not in file.parents)
    assert {file for file in sources if fields_touched(file) & MOVED} == {PACKAGE / "compat.py"}


def test_every_way_out_of_the_waiting_queue_is_there() -> None:
    assert all(callable(getattr(Scheduler, name)) for name in compat.ABORT_FUNCTIONS)


def make_req() -> Any:
    return Req("r", "", array("q", [1, 2, 3]), SamplingParams(max_new_tokens=4))


def test_a_request_holds_one_handle() -> None:
    first, second = Handle([]), Handle([])
    req = make_req()
    assert compat.held_by(req) is None
    compat.hold(req, first)
    compat.hold(req, second)
    assert compat.held_by(req) is req.last_node is second


def test_a_match_carries_slots_and_handle_and_what_is_loaded_follows() -> None:
    req, handle, slots = make_req(), Handle([]), torch.arange(3)
    result = compat.match_result(req, slots, handle, 5)
    assert result.best_match_node is handle
    assert result.host_hit_length == 5
    compat.set_prefix(req, slots)
    loaded, last = compat.load_back_result(req, torch.arange(7, 9), handle)
    assert last is handle
    if compat.HAS_CHECKPOINTS:
        assert (result.device_prefix_len, loaded, req.prefix_len) == (3, 2, 3)
        assert getattr(req, compat.PREFIX).tolist() == [0, 1, 2, 7, 8]
    else:
        assert result.device_indices is req.prefix_indices is slots
        assert loaded.tolist() == [7, 8]


def test_rows_and_protected_rows_are_where_sglang_looks_for_them() -> None:
    req = make_req()
    assert not compat.has_row(req)
    set_row(req, 4)
    compat.set_protected_len(req, 2)
    holder = req.kv if compat.HAS_CHECKPOINTS else req
    assert (compat.row_index(req), compat.protected_len(req)) == (4, 2)
    assert (holder.req_pool_idx, holder.cache_protected_len) == (4, 2)


def test_a_salt_is_taken_out_of_a_request_that_has_a_field_for_it() -> None:
    obj = SimpleNamespace(cache_salt="ann")
    assert (compat.take_salt(obj), compat.take_salt(obj), obj.cache_salt) == ("ann", None, None)
    assert compat.take_salt(SimpleNamespace()) is None
    assert compat.JOINS_SALT == (not hasattr(GenerateReqInput(), "cache_salt"))


def test_a_waiting_request_is_named_by_its_id_or_by_what_has_it() -> None:
    assert compat.rid_of("r") == compat.rid_of(SimpleNamespace(rid="r")) == "r"
