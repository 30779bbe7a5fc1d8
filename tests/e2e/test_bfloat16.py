# SPDX-License-Identifier: Apache-2.0
"""Promise P1 in bfloat16: the answers' distributions are as close to the oracle's as plain ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.engine import RunningEngine, start_engine
from tests.helpers.prompts import LAYOUTS
from tests.helpers.tolerance import BFLOAT16_KL_RATIO

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

MODEL = "llama_gqa"


@pytest.fixture(scope="module")
def engine(model_path: Callable[[str], Path]) -> Iterator[RunningEngine]:
    with start_engine(model_path(MODEL), dtype="bfloat16") as engine:
        yield engine


@pytest.fixture(scope="module")
def plain_divergence(engine: RunningEngine, oracle_of: Callable[[str], Any]) -> float:
    from tests.helpers.divergence import of_plain_prompts

    return of_plain_prompts(engine, oracle_of(MODEL))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cold_shared_and_shifted_answers_are_as_close_as_plain_ones(
    layout: str,
    engine: RunningEngine,
    oracle_of: Callable[[str], Any],
    plain_divergence: float,
) -> None:
    from tests.helpers.divergence import of_trees

    divergence, num_shifted = of_trees(engine, oracle_of(MODEL), layout)
    assert bool(num_shifted) == (layout != "tree")
    assert divergence < BFLOAT16_KL_RATIO * plain_divergence
