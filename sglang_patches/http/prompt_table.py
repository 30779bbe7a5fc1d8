# SPDX-License-Identifier: Apache-2.0
"""A prompt as a table for people: its segments with their words and where their KV comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from depcache.prompt.forest import Forest
from depcache.prompt.layout import Layout, token_positions

MAX_TABLE_ROWS = 2000
MAX_SHOWN_TOKENS = 2000
"""Longest text of the system and of the task, in tokens; longer ones are cut with an ellipsis."""

_SOURCES = ("shared", "shifted", "loaded", "missed")


def describe_prompt(
    input_ids: Sequence[int],
    forest: Forest,
    layout: Layout,
    sources: np.ndarray,
    tokenizer: Any,
) -> dict[str, Any]:
    """The system, the segments in pre-order (at most `MAX_TABLE_ROWS`) and the task.

    input_ids  tokens of the prompt in pre-order
    sources    (num_segments, 4) tokens shared, shifted, loaded, missed; the system is in front if
               there is one
    """
    has_system = forest.system_len > 0
    shown = min(forest.num_segments, MAX_TABLE_ROWS)
    starts, lens = forest.starts[:shown].tolist(), forest.lens[:shown].tolist()
    positions = token_positions(forest, layout)
    *texts, system, task = tokenizer.batch_decode(
        [
            *(input_ids[start : start + num] for start, num in zip(starts, lens, strict=True)),
            input_ids[: min(forest.system_len, MAX_SHOWN_TOKENS)],
            input_ids[forest.task_start :][:MAX_SHOWN_TOKENS],
        ]
    )
    rows = [dict(zip(_SOURCES, row, strict=True)) for row in sources[: shown + 1].tolist()]
    first = rows.pop(0) if has_system else dict.fromkeys(_SOURCES, 0)
    return {
        "system": {
            "num_tokens": forest.system_len,
            "text": system + "…" * (forest.system_len > MAX_SHOWN_TOKENS),
            **first,
        },
        "table": [
            {
                "segment": i,
                "parent": int(forest.parents[i]),
                "start": starts[i],
                "num_tokens": lens[i],
                "position": int(positions[starts[i]]),
                "text": texts[i],
                "cached": lens[i] - rows[i]["missed"],
                **rows[i],
            }
            for i in range(shown)
        ],
        "table_is_cut": shown < forest.num_segments,
        "task": {
            "num_tokens": forest.task_len,
            "text": task + "…" * (forest.task_len > MAX_SHOWN_TOKENS),
        },
    }
