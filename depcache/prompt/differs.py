# SPDX-License-Identifier: Apache-2.0
"""In what a dependency prompt differs from its flat text under ordinary attention.

Reuse is exact against a recompute of the same prompt (layout `tree`). Against the flat text three
things can differ, and a reply says which.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from depcache.prompt.forest import Forest
from depcache.prompt.layout import Layout, token_positions

Difference = Literal["merging", "visibility", "placement"]


def find_differences(
    forest: Forest, layout: Layout, *, is_merged: bool, is_behind: bool = False
) -> list[Difference]:
    """What differs: nothing, where the request is answered exactly as its flat text.

    is_merged  beginnings that the flat text repeats stand once
    is_behind  some rows were computed behind what is not in the prompt

    merging      the model reads another text, a shorter one
    visibility   some facts do not see each other, or have seen others
    placement    some tokens stand at other positions
    """
    found: list[Difference] = []
    if is_merged:
        found.append("merging")
    if is_behind or (forest.parents != np.arange(-1, forest.num_segments - 1)).any():
        found.append("visibility")
    if (token_positions(forest, layout) != np.arange(forest.num_tokens)).any():
        found.append("placement")
    return found
