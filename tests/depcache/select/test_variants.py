# SPDX-License-Identifier: Apache-2.0
"""Copies of rows that past prompts left: which is taken, how much of it is fixed, which go."""

from __future__ import annotations

import numpy as np
import pytest

from depcache.select import variants as variants_module
from depcache.select.cachecraft import contextuality, fix_overhead, overhead_alone
from depcache.select.variants import Masses, Variants

ROWS = [b"a", b"b", b"c"]
LENS = [2, 4, 3]
CONTEXT = np.arange(10, 19)
# c gave a 0.6 and b 0.2 of its mass, and its last token the most.
FOUND = [
    Masses([], 1.0, [0, 1]),
    Masses([0.8], 2.0, [3, 1, 0, 2]),
    Masses([0.6, 0.2], 1.5, [2, 0, 1]),
]
CCI = contextuality([0.6, 0.2], 1.5, [2, 4], 3)


@pytest.fixture
def variants() -> Variants:
    variants = Variants()
    variants.note(ROWS, CONTEXT, LENS, FOUND)
    return variants


def choose(
    variants: Variants, rows: list[bytes], alpha: float = 1.0, usable: list[bool] | None = None
) -> list[tuple[float, tuple[int, ...] | None, list[int]]]:
    lens = [LENS[ROWS.index(row)] for row in rows]
    fixes = variants.choose(rows, lens, alpha, usable or [True] * len(rows))
    return [
        (fix.cfo, None if fix.variant is None else fix.variant.before, fix.tokens.tolist())
        for fix in fixes
    ]


def test_the_same_rows_before_it_leave_nothing_to_fix(variants: Variants) -> None:
    assert choose(variants, ROWS) == [
        (0.0, None, []),
        (0.0, (10, 11), []),
        (0.0, (10, 11, 12, 13, 14, 15), []),
    ]


def test_what_leaned_most_on_others_is_fixed_as_much_as_its_cfo(variants: Variants) -> None:
    first, second = choose(variants, [b"a", b"c"])
    assert first == (0.0, None, [])
    cfo = fix_overhead(CCI, 0.75)  # a has 0.6 of 0.8
    assert second == (pytest.approx(cfo), (10, 11, 12, 13, 14, 15), [2])
    assert choose(variants, [b"a", b"c"], alpha=2.0)[1][2] == [2, 0]
    assert choose(variants, [b"a", b"c"], alpha=10.0)[1] == (1.0, None, [0, 1, 2])  # all, anyhow


def test_a_row_of_which_no_copy_fits_is_taken_alone(variants: Variants) -> None:
    # Behind c, b has seen nothing that it would see: half of it is fixed, as when it is alone.
    assert choose(variants, [b"c", b"b"])[1] == (0.5, None, [0, 1])
    assert choose(variants, [b"c", b"a"])[1] == (0.5, None, [0])  # it was never but the first
    # All that it has seen is there.
    assert choose(variants, [b"c", b"a", b"b"])[2] == (0.0, (10, 11), [])
    assert choose(variants, [b"a", b"b"], usable=[True, False])[1] == (0.5, None, [0, 1])
    assert overhead_alone(True) == 0.0 and overhead_alone(False, 0.4) == 0.2


def test_the_copy_of_least_cfo_is_taken(variants: Variants) -> None:
    variants.note([b"b", b"c"], CONTEXT[2:], [4, 3], [None, Masses([0.3], 1.5, [1, 0, 2])])
    assert len(variants) == 3
    assert choose(variants, [b"b", b"c"])[1] == (0.0, (12, 13, 14, 15), [])
    assert choose(variants, [b"a", b"c"])[1][1] == (10, 11, 12, 13, 14, 15)


def test_the_copy_whose_uses_were_worth_least_makes_room() -> None:
    few = Variants(max_of_row=2)
    for number, row in enumerate((b"d", b"e")):
        few.note([row, b"c"], np.arange(6 + number), [2 + number, 4], [None, FOUND[1]])
    rows, lens = [b"d", b"c"], [2, 4]
    few.use(rows, few.choose(rows, lens, 1.0, [True, True]))
    few.note([b"f", b"c"], np.arange(9), [5, 4], [None, FOUND[1]])
    taken = [few.choose([row, b"c"], lens, 1.0, [True, True])[1].variant for row in (b"d", b"f")]
    assert all(taken) and len(few) == 2
    assert few.choose([b"e", b"c"], lens, 1.0, [True, True])[1].variant is None


def test_rows_that_were_longest_unseen_are_forgotten() -> None:
    few = Variants(max_rows=2)
    few.note(ROWS, CONTEXT, LENS, FOUND)
    few.use([b"b"], few.choose([b"b"], [4], 1.0, [True]))
    few.note([b"a", b"d"], CONTEXT[:6], [2, 4], [None, FOUND[1]])
    assert choose(few, [b"a", b"b"])[1][1] is not None
    assert choose(few, ROWS)[2][1] is None


def test_a_copy_that_is_gone_is_taken_no_more(variants: Variants) -> None:
    [_, fix] = variants.choose([b"a", b"b"], [2, 4], 1.0, [True, True])
    assert fix.variant is not None
    variants.forget(b"b", fix.variant)
    assert choose(variants, [b"a", b"b"])[1][1] is None and len(variants) == 1
    variants.forget(b"b", fix.variant)  # it may be gone for another request, too


def test_rows_far_behind_and_rows_behind_too_much_are_taken_alone(
    variants: Variants, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants_module, "MAX_BEFORE", 7)  # of 2 behind b and 6 behind c
    assert [before for _, before, _ in choose(variants, ROWS)] == [None, (10, 11), None]
    monkeypatch.setattr(variants_module, "MAX_BEFORE", 8)
    monkeypatch.setattr(variants_module, "MAX_ROWS_OF_PROMPT", 2)
    assert [before for _, before, _ in choose(variants, ROWS)] == [None, (10, 11), None]
    monkeypatch.setattr(variants_module, "MAX_ROWS_OF_PROMPT", 3)
    assert choose(variants, ROWS)[2][1] is not None


def test_the_same_prompt_again_leaves_the_same_copies(variants: Variants) -> None:
    variants.note(ROWS, CONTEXT, LENS, FOUND)
    assert len(variants) == 2
    variants.note(ROWS, CONTEXT, LENS, [None] * 3)
    assert len(variants) == 2
