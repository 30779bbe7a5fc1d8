# SPDX-License-Identifier: Apache-2.0
"""What a heavy request costs others, over what its plain twin costs them."""

from __future__ import annotations

import pytest

from eval.soak.stalls import Stall


def test_what_the_twin_costs_is_not_the_stall() -> None:
    stall = Stall("x", 200, 1.0, {"a": 700.0, "b": 150.0}, {"a": 680.0, "b": 20.0}, 1)
    assert (stall.who, stall.stall_ms) == ("b", pytest.approx(130))
    assert Stall("x", 200, 1.0, {"a": 300.0}, {"a": 600.0}, 1).stall_ms == 0
    assert Stall("x", 200, 1.0, {"a": 300.0}, {}, 1).stall_ms == 300
