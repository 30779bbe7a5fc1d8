# SPDX-License-Identifier: Apache-2.0
"""Fused requests whose rows stand behind tokens of no prompt: the source `previous`."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.e2e.served import EngineCase, Served
from tests.helpers.fused_oracle import FusedOracle, FusedPrompt, fuse
from tests.helpers.judge import worst_error
from tests.helpers.prompts import TreePrompt, chain_tree, grow, plain, random_forest, random_tokens
from tests.helpers.tolerance import ORACLE_LOGPROB

ENGINES = [
    EngineCase("auto", "llama_gqa", "auto", chunk=2048),
    EngineCase("segments-chunk8", "llama_mha", "segments", 8, overlap=False),
    EngineCase("masked-yarn", "llama_yarn", "custom_mask", chunk=2048, policy="lpm"),
]

Behind = list[list[int] | None]

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module", params=[pytest.param(case, id=case.name) for case in ENGINES])
def case(request: pytest.FixtureRequest) -> EngineCase:
    return request.param


@pytest.fixture
def rng() -> random.Random:
    return random.Random(17)


def rows_behind(rng: random.Random, num_rows: int = 4) -> tuple[TreePrompt, Behind]:
    """Rows, some of them trees; all but every third behind tokens of their own."""
    prompt = TreePrompt(
        random_tokens(rng, 5), random_forest(rng, num_rows, levels=2), random_tokens(rng, 4)
    )
    return prompt, [random_tokens(rng, 3 + n) if n % 3 else None for n in range(1, num_rows + 1)]


def ask(served: Served, prompt: FusedPrompt) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer, and its report."""
    result = served.engine.ask(prompt)
    return result, result["meta_info"]["depcache"]


def error_of(
    oracle: FusedOracle, prompt: TreePrompt, chosen: list[int], result: Any, behind: Behind | None
) -> float:
    """The worst error; infinite where another token is likelier."""
    try:
        return worst_error(result, oracle.score(prompt, chosen, result["output_ids"], behind))
    except AssertionError:
        return float("inf")


def test_rows_behind_others_equal_the_oracle(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    for round_number in range(9):
        prompt, behind = rows_behind(rng, 2 + round_number % 4)
        context = range(len(prompt.system), prompt.num_context)
        chosen = sorted(rng.sample(context, rng.choice([0, 1, len(context) // 3])))
        result, report = ask(served, fuse(prompt, chosen, behind=behind))
        assert error_of(oracle, prompt, chosen, result, behind) < ORACLE_LOGPROB
        assert (report["see"], report["missed"]) == ("fused", 0)
        assert report["behind"] == sum(ids is not None for ids in behind)
        assert report["settled"] == grow(prompt, behind)[0].num_context + 1
        assert report["recomputed"] == len(chosen)


def test_alone_and_behind_are_told_apart(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    prompt, behind = rows_behind(rng)
    nothing: Behind = [None] * len(behind)
    served.engine.ask(fuse(prompt, recompute=0))  # all rows are cached alone
    result, report = ask(served, fuse(prompt, recompute=0, behind=behind))
    assert report["settled"] > 0
    assert error_of(oracle, prompt, [], result, behind) < ORACLE_LOGPROB
    assert error_of(oracle, prompt, [], result, nothing) > ORACLE_LOGPROB
    result, report = ask(served, fuse(prompt, recompute=0))
    assert report["settled"] == 0 and "behind" not in report
    assert error_of(oracle, prompt, [], result, None) < ORACLE_LOGPROB
    assert error_of(oracle, prompt, [], result, behind) > ORACLE_LOGPROB


def test_what_was_computed_by_others_is_found(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    prompt, behind = rows_behind(rng)
    ahead, _ = grow(prompt, behind)  # as `depcache precompute --source previous` has it computed
    served.ask(ahead)
    result, report = ask(served, fuse(prompt, recompute=0, behind=behind))
    assert report["settled"] == report["missed"] == 0
    assert report["shared"] + report["shifted"] == prompt.num_context
    assert error_of(oracle, prompt, [], result, behind) < ORACLE_LOGPROB


def test_an_answer_does_not_depend_on_what_was_cached(served: Served, rng: random.Random) -> None:
    prompt, behind = rows_behind(rng)
    fused = fuse(prompt, select="first", recompute=0.3, behind=behind)
    others = [fuse(prompt), grow(prompt, behind)[0], grow(prompt, behind[::-1])[0]]
    others += [TreePrompt(prompt.system, [(ids, []) for ids in behind if ids], prompt.task)]
    cold, _ = ask(served, fused)
    warm, report = ask(served, fused)
    assert report["settled"] == 0
    results = [warm]
    for order in range(1, 5):
        served.engine.flush()
        for other in rng.sample(others, order):
            served.engine.ask(other)
        results.append(ask(served, fused)[0])
    expected = cold["meta_info"]["output_token_logprobs"]
    for result in results:
        assert result["output_ids"] == cold["output_ids"]
        found = result["meta_info"]["output_token_logprobs"]
        for (value, _, _), (first, _, _) in zip(found, expected, strict=True):
            assert abs(value - first) < 1e-5


def test_a_row_may_stand_behind_another_row_of_the_prompt(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    first, second, third = (random_tokens(rng, n) for n in (4, 3, 5))
    prompt = TreePrompt(
        random_tokens(rng, 4), [(second, []), (first, []), (third, [])], random_tokens(rng, 3)
    )
    behind: Behind = [first, None, second]
    for _ in range(2):
        result, report = ask(served, fuse(prompt, [9], behind=behind))
        assert error_of(oracle, prompt, [9], result, behind) < ORACLE_LOGPROB
    assert report["settled"] == 0
    in_order = TreePrompt(prompt.system, [(first, []), (second, [])], prompt.task)
    result, report = ask(served, fuse(in_order, behind=[None, first]))
    assert report["see"] == "flat"  # each has seen what stands before it: nothing is approximate
    served.judge(plain(in_order.tokens), result)


def test_one_row_alone_may_stand_behind_something(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    behind: Behind = [random_tokens(rng, 4)]
    prompt = TreePrompt(random_tokens(rng, 5), [chain_tree(rng, 6)], random_tokens(rng, 4))
    result, report = ask(served, fuse(prompt, recompute=0, behind=behind))
    assert report["see"] == "fused" and report["differs"] == ["visibility"]
    assert error_of(oracle, prompt, [], result, behind) < ORACLE_LOGPROB
    _, report = ask(served, fuse(prompt, recompute=0))
    assert report["see"] == "flat" and report["differs"] == []


def test_what_does_not_fit_is_refused_and_the_next_request_lives(
    served: Served, rng: random.Random
) -> None:
    prompt, behind = rows_behind(rng)
    for wrong, why in (
        (behind[1:], "depcache_behind has 3 entries"),
        ([*behind[1:], []], "depcache_behind has an empty entry"),
        ([*behind[1:], [5000]], "5000 is in depcache_behind"),
        ([*behind[1:], [-1]], "-1 is in depcache_behind"),
        ([*behind[1:], "text"], "the prompt came as ids"),
        ([*behind[1:], [7] * 10**5], "with those of depcache_behind"),
        ([*behind[1:], [True]], "depcache_behind"),
        ("text", "depcache_behind"),
    ):
        with pytest.raises(ValueError, match=why):
            served.engine.ask(fuse(prompt, recompute=0, behind=wrong))
    params = {**(prompt.params() or {}), "depcache_version": 2, "depcache_behind": behind}
    with pytest.raises(ValueError, match="depcache_behind goes with depcache_see"):
        served.engine.ask_raw(prompt.tokens, {"custom_params": params})
    served.ask(prompt)
