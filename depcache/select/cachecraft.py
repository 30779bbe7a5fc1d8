# SPDX-License-Identifier: Apache-2.0
"""How much of a chunk's KV, made behind other chunks, must be computed again: Cache-Craft.

Section and equation numbers are the paper's. `inter` of two chunks is the attention that the
tokens of the later one give those of the earlier one, summed over tokens (eq. 3); `intra` the same
inside one chunk, without the diagonal (eq. 4); both averaged over heads and layers (eq. 10).

Where the paper is silent: a chunk with no chunk before it has beta' = 1 if it has none before it
now either, else 0; without attention of its own its CCI is 1 where it looks at others, else 1/2;
CFO is clipped to [0, 1]; the worth of a use is 1 / max(CFO, 0.01).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import ceil, exp, inf

import numpy as np

MIN_CFO = 0.01
"""What a use of a copy is worth is bounded by this: 1 / CFO would be infinite at 0."""


def contextuality(
    inter: Sequence[float], intra: float, other_lens: Sequence[int], own_len: int
) -> float:
    """The cache context impact, CCI = 1 / (1 + exp(-a / b)) (eq. 9 and 11).

    inter       attention to each chunk before it
    intra       attention to itself
    other_lens  tokens of each chunk before it
    own_len     tokens of the chunk

    a is the sum of the means of `inter` per pair of tokens, b the mean of `intra`. Both are at
    least 0, so CCI lies in [0.5, 1], not in (0, 1) as the paper has it.
    """
    between = sum(mass / (own_len * length) for mass, length in zip(inter, other_lens, strict=True))
    inside = intra / own_len**2
    ratio = between / inside if inside > 0 else (inf if between > 0 else 0.0)
    return 1 / (1 + exp(-ratio))


def prefix_overlap[Chunk: Hashable](
    inter: Mapping[Chunk, float], old: Sequence[Chunk], new: Sequence[Chunk]
) -> float:
    """beta: the share of the attention to old chunks that goes to those here again (eq. 6).

    inter  attention to each of `old`
    old    chunks before it when its KV was made
    new    chunks before it now

    Returns 0 to 1. With no attention to any: 1 where both are empty, else 0.
    """
    total = sum(inter[chunk] for chunk in old)
    if total <= 0:
        return float(not old and not new)
    here = set(new)
    return sum(inter[chunk] for chunk in old if chunk in here) / total


def order_penalty(old: Sequence[Hashable], new: Sequence[Hashable]) -> float:
    """gamma: the share of pairs of common chunks that changed their order (eq. 7).

    Returns 0 to 1; 0 where fewer than two are common.
    """
    place = {chunk: at for at, chunk in enumerate(new)}
    places = np.array([place[chunk] for chunk in old if chunk in place])
    num_pairs = len(places) * (len(places) - 1) // 2
    return int(np.triu(places[:, None] > places, 1).sum()) / num_pairs if num_pairs else 0.0


def adjusted_overlap[Chunk: Hashable](
    inter: Mapping[Chunk, float], old: Sequence[Chunk], new: Sequence[Chunk]
) -> float:
    """beta' = beta (1 - gamma) (eq. 8)."""
    return prefix_overlap(inter, old, new) * (1 - order_penalty(old, new))


def fix_overhead(contextuality: float, adjusted_overlap: float, alpha: float = 1.0) -> float:
    """The cache fix overhead, CFO = alpha CCI (1 - beta') (eq. 12), clipped to [0, 1].

    alpha  how careful one is; the paper has values up to 3, with which it passes 1
    """
    return min(1.0, max(0.0, alpha * contextuality * (1 - adjusted_overlap)))


def overhead_alone(is_first: bool, alpha: float = 1.0) -> float:
    """The CFO of a chunk that was computed with no chunk before it, 0 to 1.

    is_first  it has none before it now either
    """
    return fix_overhead(contextuality((), 1.0, (), 1), float(is_first), alpha)


def num_to_fix(cfo: float, own_len: int) -> int:
    """Tokens of the chunk to compute again, ceil(CFO |C|) (eq. 14); 0 to own_len."""
    return min(own_len, ceil(round(cfo * own_len, 9)))


def worth_of_use(cfo: float) -> float:
    """What one use adds to the reuse frequency of a copy (section 3.4): 1 / CFO, at most 100."""
    return 1 / max(cfo, MIN_CFO)
