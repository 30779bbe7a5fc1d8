# SPDX-License-Identifier: Apache-2.0
"""The real engine on a GPU: FlashInfer's attention, CUDA graphs, and the moving of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.engine import RunningEngine, start_engine
from tests.helpers.prompts import LAYOUTS
from tests.helpers.tolerance import BFLOAT16_KL_RATIO

pytestmark = [pytest.mark.gpu, pytest.mark.sglang, pytest.mark.timeout(900)]

MODEL = "llama_wide"
ARGUMENTS: dict[str, Any] = {
    "device": "cuda",
    "attention_backend": "flashinfer",
    "dtype": "bfloat16",
    "disable_prefill_cuda_graph": True,
}
CASES: dict[str, dict[str, Any]] = {
    "segments": {"disable_cuda_graph": False, "cuda_graph_max_bs_decode": 4},
    "cascade": {"chunked_prefill_size": 16},
    "custom_mask": {"enable_mixed_chunk": True, "chunked_prefill_size": 64},
}
"""By attention plan."""


@pytest.fixture(scope="module", params=CASES)
def engine(
    request: pytest.FixtureRequest, model_path: Callable[[str], Path]
) -> Iterator[RunningEngine]:
    with start_engine(
        model_path(MODEL),
        environment={"DEPCACHE_ATTENTION_PLAN": request.param},
        **{**ARGUMENTS, **CASES[request.param]},
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain_divergence(engine: RunningEngine, oracle_of: Callable[[str], Any]) -> float:
    from tests.helpers.divergence import of_plain_prompts

    return of_plain_prompts(engine, oracle_of(MODEL))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cold_shared_and_moved_answers_are_as_close_to_float32_as_plain_ones(
    layout: str,
    engine: RunningEngine,
    oracle_of: Callable[[str], Any],
    plain_divergence: float,
) -> None:
    from tests.helpers.divergence import of_trees

    divergence, num_shifted = of_trees(engine, oracle_of(MODEL), layout)
    assert bool(num_shifted) == (layout != "tree")
    assert divergence < BFLOAT16_KL_RATIO * plain_divergence, (divergence, plain_divergence)
    engine.check_conservation()
