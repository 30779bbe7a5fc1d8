# SPDX-License-Identifier: Apache-2.0
"""Which wrapper a call gets. What wrappers compute is in tests/gpu/test_kernels.py."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.sglang


def test_no_two_calls_of_a_forward_pass_share_a_wrapper_and_the_next_pass_makes_none() -> None:
    from sglang_patches.attention.flashinfer_calls import Wrappers

    made: list[list[str]] = []

    def make(kind: str) -> list[str]:
        made.append([kind])
        return made[-1]

    wrappers = Wrappers(make)
    first = [wrappers.take(kind) for kind in ("causal", "full", "full")]
    assert first == [["causal"], ["full"], ["full"]]
    assert first[1] is not first[2]
    wrappers.start()
    second = [wrappers.take(kind) for kind in ("full", "causal", "full", "full")]
    assert second[0] is first[1]
    assert second[1] is first[0]
    assert second[2] is first[2]
    assert len(made) == 4
