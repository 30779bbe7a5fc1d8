# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters (P4): what one has cached is used with the same weights, and with no others."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.e2e.adapted import LAYOUTS, Adapted, Adapters, prompts_of, start_adapted
from tests.helpers.engine import reuse_of
from tests.helpers.fused_oracle import FusedOracle, fuse
from tests.helpers.judge import OracleReport, worst_error
from tests.helpers.prompts import TreePrompt, random_forest, random_tokens
from tests.helpers.tolerance import ORACLE_LOGPROB

pytestmark = pytest.mark.sglang
pytest.importorskip("peft", reason="needs the extra `finetune`")


@pytest.fixture(scope="module")
def running(adapters: Adapters, oracle_report: OracleReport) -> Iterator[Adapted]:
    with start_adapted(adapters, adapters.folders, oracle_report) as server:
        yield server


@pytest.fixture
def server(running: Adapted) -> Adapted:
    running.engine.flush()
    return running


@pytest.mark.parametrize("kind", ["plain", *LAYOUTS])
def test_each_adapter_answers_from_a_cache_of_its_own(server: Adapted, kind: str) -> None:
    prompt = prompts_of(random.Random(3))[kind]
    cold = {}
    for name in (None, "A", "B"):
        server.engine.flush()
        cold[name] = server.ask(prompt, name)
    assert len({tuple(result["output_ids"]) for result in cold.values()}) == 3

    server.engine.flush()
    for name in (None, "A", "B"):
        first = server.ask(prompt, name)
        assert first["meta_info"]["cached_tokens"] == 0
        assert first["output_ids"] == cold[name]["output_ids"]
    for name in ("A", None, "B", "A"):
        again = server.ask(prompt, name)
        assert again["output_ids"] == cold[name]["output_ids"]
        if prompt.is_plain:
            assert again["meta_info"]["cached_tokens"] == prompt.num_tokens - 1
        else:
            assert reuse_of(again) == (prompt.num_context, 0, 0)


def test_adapters_and_the_model_alone_run_in_one_batch(server: Adapted) -> None:
    rng = random.Random(4)
    names: list[str | None] = [None, "A", "B", "A", "B", None]
    trees = random_forest(rng, 6)
    prompts = [
        TreePrompt(random_tokens(rng, 5), rng.sample(trees, 4), random_tokens(rng, 5))
        for _ in names
    ]
    server.ask_together(prompts, names)
    for result in server.ask_together(prompts, names):
        assert reuse_of(result)[2] == 0


def test_fused_requests_settle_and_fuse_with_their_adapter(
    server: Adapted, adapters: Adapters
) -> None:
    rng = random.Random(6)
    prompt = TreePrompt(random_tokens(rng, 5), random_forest(rng, 4), random_tokens(rng, 5))
    chosen = list(range(len(prompt.system), prompt.num_context))[::3]
    answers = []
    for name in (None, "A", "B", "A"):
        oracle = FusedOracle(adapters.oracles[name])
        result = server.engine.ask(fuse(prompt, chosen), lora_path=name)
        report = result["meta_info"]["depcache"]
        assert (report["see"], report["missed"]) == ("fused", 0)
        assert (report["settled"] == 0) == (len(answers) == 3)  # A comes again
        expected = oracle.score(prompt, chosen, result["output_ids"])
        assert worst_error(result, expected) < ORACLE_LOGPROB
        for select in ("query", "query-context"):
            asked = fuse(prompt, select=select, recompute=1 / 3)
            by_score = server.engine.ask(asked, lora_path=name)
            indices, _ = oracle.choose(prompt, 1 / 3, select)
            expected = oracle.score(prompt, indices, by_score["output_ids"])
            assert worst_error(by_score, expected) < ORACLE_LOGPROB
        answers.append(result["output_ids"])
    assert answers[3] == answers[1]
    assert len({tuple(answer) for answer in answers}) == 3


def test_two_layers_are_not_run_by_themselves_with_adapters_in_them(server: Adapted) -> None:
    rng = random.Random(7)
    prompt = TreePrompt([], random_forest(rng, 3), random_tokens(rng, 5))
    for name in (None, "A"):
        with pytest.raises(ValueError, match="LoRA adapters in them: use another selector"):
            server.engine.ask(fuse(prompt, select="deviation"), lora_path=name)
    server.ask(prompt, "A")


def test_an_adapter_is_its_weights_and_not_its_name(server: Adapted, adapters: Adapters) -> None:
    prompt = prompts_of(random.Random(5))["tree"]
    server.ask(prompt, "A")
    server.load("C", adapters.folders["A"])  # A again: what A computed serves it
    try:
        assert reuse_of(server.ask(prompt, "C", like="A")) == (prompt.num_context, 0, 0)
    finally:
        server.unload("C")
    server.load("C", adapters.folders["B"])  # the same name with other weights
    try:
        assert reuse_of(server.ask(prompt, "C", like="B")) == (0, 0, prompt.num_context)
    finally:
        server.unload("C")
