# SPDX-License-Identifier: Apache-2.0
"""Which trees of a prompt are read from what everyone may read, and which from the asker's own.

A tenant's KV is its own. One namespace may be public: all read it, and only its own requests write
it. A tree is read there where all of it is there, so nothing of a tenant's ever hangs below what
is public: what is missed is computed and cached among its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from depcache.plan.segments import SegmentTable

NOT_WHOLE, BELOW, ON_DEVICE = range(3)
"""How much of a segment is cached: not all; all, some of it below the device; all on the device."""


def choose_public(
    table: SegmentTable, own: Sequence[int], public: Sequence[int]
) -> list[bool] | None:
    """Per segment whether the public namespace is read for it; None where it is for none.

    own, public  (S,) how much of each segment is cached, `NOT_WHOLE`, `BELOW` or `ON_DEVICE`

    A tree that is whole in both is read where it is on the device, of two such the asker's own. So
    a tail on the device finds its whole context there, whichever it was computed behind. O(S).
    """
    # The first segment is the system, or a tree: then it and each tree below it count as one.
    heads: list[int] = []
    for segment, parent in enumerate(table.parents):
        heads.append(segment if parent <= 0 else heads[parent])
    least_own, least_public = list(own), list(public)
    for segment, head in enumerate(heads):
        least_own[head] = min(least_own[head], own[segment])
        least_public[head] = min(least_public[head], public[segment])
    is_read = [ours < theirs for ours, theirs in zip(least_own, least_public, strict=True)]
    below_first = [i for i, parent in enumerate(table.parents) if parent == 0]
    if below_first:
        # What hangs below the first segment, and is not public, is cached below the asker's own.
        is_read[0] = all(is_read[i] for i in below_first)
    chosen = [is_read[head] for head in heads]
    return chosen if any(chosen) else None
