# SPDX-License-Identifier: Apache-2.0
"""Rows counted by segment and kind, against counting them one by one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.plan import RowKind
from tests.depcache.plan.test_request import ServedPrompts, make_table
from tests.helpers.prompts import LAYOUTS, TreePrompt
from tests.helpers.strategies import prompts


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_context_row_counts_once_in_its_segment(data: st.DataObject) -> None:
    layouts = st.just(data.draw(st.sampled_from(LAYOUTS)))
    served = ServedPrompts()
    for earlier in data.draw(st.lists(prompts(layouts), max_size=3)):
        served.serve(earlier)
    prompt: TreePrompt = data.draw(prompts(layouts))
    table = make_table(prompt)
    plan = served.plan(prompt)
    expected: Counter[tuple[int, int]] = Counter()
    for index, kind in zip(plan.rows.index.tolist(), plan.rows.kind.tolist(), strict=True):
        for segment, (start, stop) in enumerate(zip(table.starts, table.stops, strict=True)):
            if start <= index < stop:
                expected[segment, kind] += 1
    counted = plan.rows.by_segment(table)
    assert counted.shape == (table.num_segments, RowKind.MISSED + 1)
    assert {
        (segment, kind): counted[segment, kind]
        for segment in range(table.num_segments)
        for kind in range(RowKind.MISSED + 1)
        if counted[segment, kind]
    } == expected
