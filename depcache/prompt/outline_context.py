# SPDX-License-Identifier: Apache-2.0
"""From the elements of an outline to the segments of its context, which is what `merge`, `parents`
and `sees` say."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from depcache.prompt.outline import Outline
from depcache.prompt.prefix_tree import Context, merge_sequences
from depcache.prompt.seen_rows import Joins, hang_rows


def join_elements(
    elements: Sequence[Sequence[int]], rows: Sequence[int], closing: Sequence[int]
) -> list[list[int]]:
    """Ids of each row, of elements that follow one another; `rows` counts them.

    closing  goes behind each row of one element
    """
    joined: list[list[int]] = []
    at = 0
    for num_elements in rows:
        row: list[int] = []
        for ids in elements[at : at + num_elements]:
            row += ids
        if num_elements == 1:
            row += closing
        joined.append(row)
        at += num_elements
    return joined


def hang(rows: list[list[int]], outline: Outline) -> tuple[Context, Joins]:
    """The segments of these rows, and their joins as `Forest.make` takes them."""
    if outline.sees:
        return hang_rows(rows, outline.sees, merge=outline.merge)
    if outline.merge:
        return merge_sequences(rows), {}
    parents = list(outline.parents) or [-1] * len(rows)
    return (list(chain.from_iterable(rows)), list(map(len, rows)), parents), {}
