# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for prompts that overlap a lot: few different tokens, short paths."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.helpers.prompts import LAYOUTS, Tree, TreePrompt

NUM_TOKENS = 4

tokens = st.integers(0, NUM_TOKENS - 1)
runs = st.lists(tokens, min_size=1, max_size=6)


@st.composite
def forests(draw: st.DrawFn, max_paths: int = 8) -> list[Tree]:
    """Trees of random paths, common beginnings merged; segments cut at forks and elsewhere."""
    paths = draw(st.lists(runs, max_size=max_paths))
    cuts = draw(st.integers(0, 3))  # cut a run without a fork behind every so many tokens
    trie: dict[int, dict] = {}
    for path in paths:
        below = trie
        for token in path:
            below = below.setdefault(token, {})
    return [_compress(token, below, cuts) for token, below in trie.items()]


def _compress(token: int, below: dict[int, dict], cuts: int) -> Tree:
    run = [token]
    while len(below) == 1 and not (cuts and len(run) >= cuts):
        token, below = next(iter(below.items()))
        run.append(token)
    return run, [_compress(first, rest, cuts) for first, rest in below.items()]


@st.composite
def prompts(
    draw: st.DrawFn, layouts: st.SearchStrategy[str] | None = None, *, twins: bool = False
) -> TreePrompt:
    """A prompt in any layout; the system is one of few, so that requests share it often.

    twins  some trees may begin alike, or be the same
    """
    system = draw(st.sampled_from([[], [0], [0, 1, 2], [0, 1, 3, 1]]))
    task = draw(st.lists(tokens, min_size=1, max_size=3))
    layout = draw(st.sampled_from(LAYOUTS) if layouts is None else layouts)
    trees = draw(forests())
    if twins:
        trees += draw(forests(max_paths=3))
    return TreePrompt(system, trees, task, layout)
