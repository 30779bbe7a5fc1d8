# SPDX-License-Identifier: Apache-2.0
"""Position layouts: which RoPE position every token of a prompt sits at.

    tree         system_len + depth: every tree starts right behind the system, or behind the
                 deepest of what it is joined to
    staggered    start of its tree + depth in it, trees one after another by their height
    sequential   index in pre-order (the paper's layout, DepCache section 4.1)

The system sits at 0.., the task follows the last used context position, and output token k
(counted from 0) sits at the position of the last prompt token + 1 + k. Inside a segment
positions are consecutive, so one integer per segment says everything.
"""

from __future__ import annotations

import numpy as np

from depcache.prompt.forest import Forest, IntArray
from depcache.prompt.layout_names import LAYOUTS, Layout, read_layout

__all__ = [
    "LAYOUTS",
    "Layout",
    "read_layout",
    "segment_positions",
    "task_position",
    "token_positions",
]


def segment_positions(forest: Forest, layout: Layout) -> IntArray:
    """(num_segments,) int64: position of the first token of each segment."""
    layout = read_layout(layout)
    if layout == "sequential":
        return forest.starts.copy()
    depths = forest.depths
    if layout == "staggered" and forest.num_segments:
        # A tree is as high as its deepest token; wider trees reuse positions inside.
        roots = np.flatnonzero(forest.parents == -1)
        depths = depths - depths[roots][forest.trees]
        heights = np.maximum.reduceat(depths + forest.lens, roots)
        depths = depths + (np.cumsum(heights) - heights)[forest.trees]
    return forest.system_len + depths


def task_position(forest: Forest, layout: Layout) -> int:
    """Position of the first task token: one past the last position the context uses."""
    return _task_position(forest, segment_positions(forest, layout))


def token_positions(forest: Forest, layout: Layout) -> IntArray:
    """(num_tokens,) int64: position of every prompt token, in pre-order."""
    firsts = segment_positions(forest, layout)
    positions = np.arange(forest.num_tokens, dtype=np.int64)
    positions[forest.system_len : forest.task_start] += np.repeat(
        firsts - forest.starts, forest.lens
    )
    positions[forest.task_start :] += _task_position(forest, firsts) - forest.task_start
    return positions


def _task_position(forest: Forest, firsts: IntArray) -> int:
    return int((firsts + forest.lens).max()) if len(firsts) else forest.system_len
