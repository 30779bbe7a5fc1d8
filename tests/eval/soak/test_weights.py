# SPDX-License-Identifier: Apache-2.0
"""Which weights a request may have run with."""

from __future__ import annotations

import time

from eval.soak.weights import Weights


def test_while_weights_change_a_request_may_have_run_with_both() -> None:
    weights = Weights.of("a")
    before = time.monotonic()
    with weights.changing_to("b"):
        during = time.monotonic()
        assert weights.between(during, during) == ["a", "b"]
    ended = time.monotonic()
    while (after := time.monotonic()) <= ended:
        pass  # the clock's step is not ours to know
    assert weights.between(before - 2, before - 1) == ["a"]
    assert weights.between(before - 1, after) == ["a", "b"]
    assert weights.between(after, after + 1) == ["b"]
