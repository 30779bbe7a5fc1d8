# SPDX-License-Identifier: Apache-2.0
"""Fused requests whose rows stand behind several chunks, each computed alone (FusionRAG, 3.1)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.e2e.served import EngineCase, Served
from tests.e2e.test_fused_behind import ask, error_of
from tests.helpers.fused_oracle import Behind, FusedOracle, fuse, is_several
from tests.helpers.prompts import TreePrompt, random_tokens
from tests.helpers.tolerance import ORACLE_LOGPROB

ENGINES = [
    EngineCase("auto", "llama_gqa", "auto", chunk=2048),
    EngineCase("segments-chunk8", "llama_mha", "segments", 8, overlap=False),
]

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module", params=[pytest.param(case, id=case.name) for case in ENGINES])
def case(request: pytest.FixtureRequest) -> EngineCase:
    return request.param


@pytest.fixture
def rng() -> random.Random:
    return random.Random(23)


def rows_behind(rng: random.Random, num_rows: int = 4) -> tuple[TreePrompt, Behind]:
    """Rows that begin alike; behind nothing, one chunk, two, three; some of these are rows too."""
    first = random_tokens(rng, 1)
    rows = [first + random_tokens(rng, rng.randrange(3, 7)) for _ in range(num_rows)]
    prompt = TreePrompt(random_tokens(rng, 5), [(row, []) for row in rows], random_tokens(rng, 4))
    behind: Behind = []
    for number in range(num_rows):
        others = [row for row in rows if row is not rows[number]]
        pool = [*others, *(first + random_tokens(rng, rng.randrange(1, 6)) for _ in range(3))]
        chosen = rng.sample(pool, number % 4)
        behind.append(None if not chosen else chosen[0] if len(chosen) == 1 else chosen)
    return prompt, behind


def chunks_of(prompt: TreePrompt, behind: Behind) -> TreePrompt:
    """An ordinary prompt in which every chunk is a row."""
    parts = [part for each in behind if is_several(each) for part in each]
    trees = {tuple(part): (part, []) for part in parts}
    return TreePrompt(prompt.system, list(trees.values()), prompt.task)


def test_rows_behind_several_chunks_equal_the_oracle(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    for round_number in range(9):
        prompt, behind = rows_behind(rng, 3 + round_number % 3)
        context = range(len(prompt.system), prompt.num_context)
        chosen = sorted(rng.sample(context, rng.choice([0, 1, len(context) // 3])))
        fused = fuse(prompt, chosen, behind=behind)
        result, report = ask(served, fused)
        assert error_of(oracle, prompt, chosen, result, behind) < ORACLE_LOGPROB
        assert (report["see"], report["missed"]) == ("fused", 0)
        assert report["behind"] == sum(each is not None for each in behind)
        assert report["settled"] > 0 and report["recomputed"] == len(chosen)
        result, report = ask(served, fused)
        assert report["settled"] == 0
        assert error_of(oracle, prompt, chosen, result, behind) < ORACLE_LOGPROB


def test_other_chunks_or_another_order_is_another_copy(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    system, row, task = random_tokens(rng, 4), random_tokens(rng, 6), random_tokens(rng, 3)
    prompt = TreePrompt(system, [(random_tokens(rng, 3), []), (row, [])], task)
    one, two, three = (random_tokens(rng, n) for n in (4, 3, 5))
    entries: Behind = [None, one, [one, two], [two, one], [one, two, three], [one + two, three]]
    for _ in range(2):
        for entry in rng.sample(entries, len(entries)):
            result, _ = ask(served, fuse(prompt, [], behind=[None, entry]))
            errors = [
                error_of(oracle, prompt, [], result, [None, other]) < ORACLE_LOGPROB
                for other in entries
            ]
            assert errors == [other == entry for other in entries]


def test_one_chunk_in_a_list_is_that_chunk(served: Served, rng: random.Random) -> None:
    prompt = TreePrompt(random_tokens(rng, 4), [(random_tokens(rng, 5), [])], [20, 21])
    one = random_tokens(rng, 4)
    assert ask(served, fuse(prompt, [], behind=[one]))[1]["settled"] > 0
    assert ask(served, fuse(prompt, [], behind=[[one]]))[1]["settled"] == 0


def test_an_exact_request_reads_none_of_it(served: Served, rng: random.Random) -> None:
    system, row, task = random_tokens(rng, 4), random_tokens(rng, 6), random_tokens(rng, 3)
    prompt = TreePrompt(system, [(row, [])], task)
    behind: Behind = [[random_tokens(rng, 4), random_tokens(rng, 3)]]
    served.engine.flush()
    assert ask(served, fuse(prompt, [], behind=behind))[1]["settled"] > 0
    result = served.ask(prompt)  # judged by a recompute
    assert result["meta_info"]["depcache"]["missed"] == len(row)
    result = served.ask(TreePrompt([], [], prompt.tokens))
    assert result["meta_info"]["cached_tokens"] <= prompt.num_context


def test_what_stands_behind_them_is_kept_alone_and_once(served: Served, rng: random.Random) -> None:
    prompt, behind = rows_behind(rng)
    served.engine.flush()
    ask(served, fuse(prompt, [], behind=behind))
    result = served.ask(chunks_of(prompt, behind))
    assert result["meta_info"]["depcache"]["missed"] == 0


def test_an_answer_does_not_depend_on_what_was_cached(served: Served, rng: random.Random) -> None:
    prompt, behind = rows_behind(rng)
    fused = fuse(prompt, select="first", recompute=0.3, behind=behind)
    others: list[Any] = [
        fuse(prompt),
        fuse(prompt, behind=behind[::-1]),
        chunks_of(prompt, behind),
        TreePrompt([], [], prompt.tokens),
    ]
    cold, _ = ask(served, fused)
    results = [ask(served, fused)[0]]
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


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ([], "empty entry"),
        ([[20, 21], []], "empty entry"),
        ([[20], [2**40]], "1099511627776 is in depcache_behind"),
        ([[20], [1024]], "1024 is in depcache_behind, but the model's vocabulary"),
        ([[20], "text"], "but the prompt came as ids"),
        ([[20], [[21]]], "depcache_behind"),
        ([[20] * 50_000, [21] * 50_000, [22] * 50_000], "the model's context takes at most"),
    ],
)
def test_what_does_not_fit_is_refused(served: Served, entry: Any, why: str) -> None:
    prompt = TreePrompt([16, 17], [([18, 19], [])], [20])
    with pytest.raises(Exception, match=why):
        served.engine.ask(fuse(prompt, [], behind=[entry]))


def test_a_tree_stands_behind_one_chunk_at_most(served: Served) -> None:
    prompt = TreePrompt([16, 17], [([18, 19], [([21], []), ([22], [])])], [20])
    with pytest.raises(Exception, match="a tree of 3 segments"):
        served.engine.ask(fuse(prompt, [], behind=[[[30], [31]]]))
