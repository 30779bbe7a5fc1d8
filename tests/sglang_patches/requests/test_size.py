# SPDX-License-Identifier: Apache-2.0
"""What is short is told by what was sent, whatever that is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_patches.requests.size import MAX_SHORT, is_short

HALF = MAX_SHORT // 2


def asked(text: Any = None, input_ids: Any = None, **params: Any) -> Any:
    return SimpleNamespace(
        text=text, input_ids=input_ids, sampling_params={"custom_params": params}
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (asked("a" * HALF, depcache_paths="b" * HALF), True),
        (asked("a" * HALF, depcache_paths="b" * (HALF + 1)), False),
        (asked(None, [1] * HALF, depcache_segment_lens=[1] * (HALF + 1)), False),
        (asked(None, [1] * 2000, depcache_segment_lens=[1] * 300, depcache_version=1), True),
        (asked("a", others="b" * 2 * MAX_SHORT), True),  # a key that nobody here reads
        (asked(7, {"a": 1}, depcache_paths=None, depcache_version=[]), True),
    ],
)
def test_text_and_lists_of_ours_count(prompt: Any, expected: bool) -> None:
    assert is_short(prompt) is expected
