# SPDX-License-Identifier: Apache-2.0
"""Joins on the wire: read as they were written, and not written where there are none."""

from __future__ import annotations

import pytest

from depcache.errors import PromptError
from depcache.prompt.wire import forest_from_wire, parse_wire
from depcache.prompt.wire_forms import WireIds

IDS = {
    "depcache_version": 2,
    "depcache_layout": "tree",
    "depcache_system_len": 2,
    "depcache_segment_lens": [2, 1, 1, 2],
    "depcache_segment_parents": [-1, 0, 0, -1],
}


def test_joins_of_the_ids_form_are_read() -> None:
    params = {**IDS, "depcache_segment_joins": [[3, 1, 2]]}
    wire = parse_wire(params)
    assert isinstance(wire, WireIds)
    assert wire.to_params() == params
    assert forest_from_wire(list(range(10)), wire).structure.joins == ((3, (1, 2)),)


def test_without_joins_the_key_is_not_written() -> None:
    wire = parse_wire({**IDS, "depcache_segment_joins": []})
    assert wire is not None and wire.to_params() == IDS


def test_rows_that_see_rows_are_not_fused() -> None:
    outline = {"start": 0, "lens": [1, 1], "rows": [1, 1], "sees": [[], [0]]}
    params = {"depcache_version": 2, "depcache_see": "fused", "depcache_outline": outline}
    with pytest.raises(PromptError, match="rows that see other rows"):
        parse_wire(params)
