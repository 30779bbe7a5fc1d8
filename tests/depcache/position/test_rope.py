# SPDX-License-Identifier: Apache-2.0
"""Which models' keys may be moved, and the reason where they may not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from depcache.position.rope import MOVABLE_ROPE_TYPES, why_not_movable


def config(**values: Any) -> Any:
    return SimpleNamespace(**values)


@pytest.mark.parametrize("rope_type", MOVABLE_ROPE_TYPES)
@pytest.mark.parametrize("attribute", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_scalings_with_fixed_frequencies_are_movable(
    rope_type: str, attribute: str, key: str
) -> None:
    assert why_not_movable(config(rope_theta=1e4, **{attribute: {key: rope_type}})) is None


def test_plain_rope_is_movable() -> None:
    assert why_not_movable(config(rope_theta=1e4)) is None
    assert why_not_movable(config(rope_theta=1e4, rope_scaling=None)) is None
    assert why_not_movable(config(rope_parameters={"rope_theta": 1e4})) is None


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"rope_parameters": {"rope_type": "dynamic"}}, "dynamic"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_theta": 1e4, "rope_scaling": {"mrope_section": [2, 3]}}, "multimodal"),
        ({"alibi": True}, "ALiBi"),
        ({"position_embedding_type": "alibi"}, "ALiBi"),
        ({}, "no rotary"),
        ({"rope_parameters": "yarn"}, "cannot be read"),
    ],
)
def test_other_models_are_not_and_the_reason_is_told(values: dict[str, Any], reason: str) -> None:
    assert reason in (why_not_movable(config(**values)) or "")


@pytest.mark.parametrize("dtype", ["fp8_e5m2", "fp8_e4m3", "fp4_e2m1"])
def test_a_quantized_cache_is_not_movable(dtype: str) -> None:
    assert dtype in (why_not_movable(config(rope_theta=1e4), dtype) or "")


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_an_unquantized_cache_is_movable(dtype: str) -> None:
    assert why_not_movable(config(rope_theta=1e4), dtype) is None
