# SPDX-License-Identifier: Apache-2.0
"""Promise P1 in bfloat16: the answers' distributions are as close to the oracle's as plain ones.

On a CPU by torch; on a GPU by FlashInfer, with CUDA graphs, in chunks and in mixed batches.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import test_fused_by_score as by_score
from tests.helpers.engine import RunningEngine, start_engine
from tests.helpers.fused_oracle import FusedOracle, fuse
from tests.helpers.prompts import LAYOUTS, TreePrompt, random_forest, random_tokens
from tests.helpers.tolerance import BFLOAT16_KL_RATIO

pytestmark = pytest.mark.sglang

told = by_score.told


@dataclass(frozen=True)
class Case:
    """A model, an attention plan, and SGLang's arguments."""

    model: str = "llama_gqa"
    plan: str = "auto"
    arguments: dict[str, Any] = field(default_factory=dict)


def on_gpu(plan: str, **arguments: Any) -> Any:
    on_device = {
        "device": "cuda",
        "attention_backend": "flashinfer",
        "disable_prefill_cuda_graph": True,
    }
    case = Case("llama_wide", plan, on_device | arguments)
    return pytest.param(case, id=f"gpu-{plan}", marks=pytest.mark.gpu)


CASES = [
    pytest.param(Case(), id="cpu", marks=pytest.mark.slow),
    on_gpu("segments", disable_cuda_graph=False, cuda_graph_max_bs_decode=4),
    on_gpu("cascade", chunked_prefill_size=16),
    on_gpu("custom_mask", chunked_prefill_size=64, enable_mixed_chunk=True),
]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(scope="module")
def engine(case: Case, model_path: Callable[[str], Path]) -> Iterator[RunningEngine]:
    with start_engine(
        model_path(case.model),
        environment={"DEPCACHE_ATTENTION_PLAN": case.plan},
        dtype="bfloat16",
        **case.arguments,
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain_divergence(case: Case, engine: RunningEngine, oracle_of: Callable[[str], Any]) -> float:
    from tests.helpers.divergence import of_plain_prompts

    return of_plain_prompts(engine, oracle_of(case.model))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cold_shared_and_shifted_answers_are_as_close_as_plain_ones(
    layout: str,
    case: Case,
    engine: RunningEngine,
    oracle_of: Callable[[str], Any],
    plain_divergence: float,
) -> None:
    from tests.helpers.divergence import of_trees

    divergence, num_shifted = of_trees(engine, oracle_of(case.model), layout)
    assert bool(num_shifted) == (layout != "tree")
    assert divergence < BFLOAT16_KL_RATIO * plain_divergence
    engine.check_conservation()


@pytest.mark.parametrize("name", by_score.SELECTORS)
def test_scores_choose_nearly_what_they_choose_in_float32(
    name: str,
    case: Case,
    engine: RunningEngine,
    oracle_of: Callable[[str], Any],
    told: list[dict[str, Any]],
) -> None:
    rng = random.Random(3)
    oracle = FusedOracle(oracle_of(case.model))
    num_chosen = num_equal = 0
    for _ in range(6):
        trees = random_forest(rng, 6, levels=2)
        prompt = TreePrompt(random_tokens(rng, 5), trees, random_tokens(rng, 9))
        result = engine.ask(fuse(prompt, select=name, recompute=0.3))
        report = result["meta_info"]["depcache"]
        assert (report["see"], report["fallback_reason"]) == ("fused", None)
        expected, _ = oracle.choose(prompt, 0.3, name)
        chosen = told[-1]["chosen"]
        assert report["recomputed"] == len(chosen) == len(expected)
        num_chosen += len(expected)
        num_equal += len({*chosen} & {*expected})
    assert num_equal > 0.8 * num_chosen  # any choice has 0.3
    engine.check_conservation()
