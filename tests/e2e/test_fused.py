# SPDX-License-Identifier: Apache-2.0
"""Fused requests equal the oracle of two passes, whatever the cache holds, and write nothing."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.e2e.served import EngineCase, Served
from tests.helpers.fused_oracle import FusedOracle, FusedPrompt, fuse
from tests.helpers.judge import worst_error
from tests.helpers.prompts import TreePrompt, chain_tree, plain, random_forest, random_tokens
from tests.helpers.tolerance import ORACLE_LOGPROB

ENGINES = [
    EngineCase("auto", "llama_gqa", "auto", chunk=2048),
    EngineCase("segments-chunk8", "llama_mha", "segments", 8, overlap=False),
    EngineCase("cascade-qwen2-chunk16", "qwen2", "cascade", chunk=16),
    EngineCase("masked-yarn", "llama_yarn", "custom_mask", chunk=2048, policy="lpm"),
    EngineCase("blocks-chunk16", "llama_gqa", "blocks", chunk=16),
]

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module", params=[pytest.param(case, id=case.name) for case in ENGINES])
def case(request: pytest.FixtureRequest) -> EngineCase:
    return request.param


@pytest.fixture
def rng() -> random.Random:
    return random.Random(11)


def forest_prompt(rng: random.Random, num_trees: int = 4, levels: int = 3) -> TreePrompt:
    return TreePrompt(
        random_tokens(rng, 5), random_forest(rng, num_trees, levels), random_tokens(rng, 4)
    )


def context(prompt: TreePrompt) -> range:
    return range(len(prompt.system), prompt.num_context)


def ask(
    served: Served, prompt: FusedPrompt, **options: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer, and its report."""
    result = served.engine.ask(prompt, **options)
    return result, result["meta_info"]["depcache"]


def error_of(oracle: FusedOracle, prompt: TreePrompt, chosen: list[int], result: Any) -> float:
    plain_prompt = TreePrompt(prompt.system, prompt.trees, prompt.task)
    return worst_error(result, oracle.score(plain_prompt, chosen, result["output_ids"]))


def is_wrong(oracle: FusedOracle, prompt: TreePrompt, chosen: list[int], result: Any) -> bool:
    """Whether the answer is not that of these indices: what a passing comparison proves."""
    try:
        return error_of(oracle, prompt, chosen, result) > ORACLE_LOGPROB
    except AssertionError:  # another token is likelier
        return True


NUM_PAIRS = 200 // len(ENGINES)


def special_sets(rng: random.Random, prompt: TreePrompt) -> dict[str, list[int]]:
    """Indices of the context by what is special about them; not all of them in every prompt."""
    starts = (len(prompt.system) + np.cumsum([0, *prompt.segment_lens])).tolist()
    segments = [range(*pair) for pair in itertools.pairwise(starts)]
    roots = [number for number, parent in enumerate(prompt.segment_parents) if parent < 0]
    rows = [
        range(starts[first], starts[stop])
        for first, stop in itertools.pairwise([*roots, len(segments)])
    ]
    inner = [each for number, each in enumerate(segments) if number not in roots]
    of_inner = [index for each in inner for index in each]
    everything = list(context(prompt))
    without = rng.choice(rows[-1])
    return {
        "one": [rng.choice(everything)],
        "a whole row": list(rng.choice(rows)),
        "all first tokens of rows": [row[0] for row in rows],
        "all first tokens of segments": [each[0] for each in segments],
        "a whole inner segment": list(rng.choice(inner)) if inner else [],
        "some of inner segments": rng.sample(of_inner, (len(of_inner) + 1) // 2),
        "all last tokens of rows": [row[-1] for row in rows],
        "all but one": [index for index in everything if index != without],
        "any": rng.sample(everything, rng.randrange(1, len(everything))),
        "none": [],
    }


def test_any_given_indices_equal_the_oracle_of_two_passes(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    seen: Counter[str] = Counter()
    kinds = itertools.cycle(special_sets(rng, forest_prompt(rng)))
    while seen.total() < NUM_PAIRS:
        asked: list[tuple[str, TreePrompt, list[int]]] = []
        for kind in itertools.islice(kinds, 10):
            prompt = forest_prompt(rng, num_trees=rng.randrange(1, 6))
            chosen = sorted(special_sets(rng, prompt)[kind])
            if (chosen or kind == "none") and set(context(prompt)) - set(chosen):
                asked.append((kind, prompt, chosen))
        results = served.engine.generate([fuse(prompt, chosen) for _, prompt, chosen in asked])
        for (kind, prompt, chosen), result in zip(asked, results, strict=True):
            report = result["meta_info"]["depcache"]
            assert error_of(oracle, prompt, chosen, result) < ORACLE_LOGPROB, kind
            if report["see"] == "fused":
                assert report["recomputed"] == len(chosen)
                assert report["missed"] == 0
                assert report["differs"] == ["visibility"]
                seen[kind] += 1
    assert len(seen) == 10 and min(seen.values()) > 1


def test_nothing_recomputed_reuses_every_row_where_it_now_stands(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    prompt = forest_prompt(rng)
    result, report = ask(served, fuse(prompt, recompute=0))
    assert error_of(oracle, prompt, [], result) < ORACLE_LOGPROB
    assert report["recomputed"] == report["missed"] == 0
    assert report["shared"] + report["shifted"] == prompt.num_context
    assert report["shifted"] > 0
    assert is_wrong(oracle, prompt, list(context(prompt)), result)


def test_everything_recomputed_is_the_flat_prompt(served: Served, rng: random.Random) -> None:
    prompt = forest_prompt(rng)
    flat = plain(prompt.tokens)
    result, report = ask(served, fuse(prompt, recompute=1))
    served.judge(flat, result)
    assert report["see"] == "flat"
    assert report["differs"] == []
    again = served.engine.ask(flat)  # what it cached is a plain prompt's prefix
    assert again["meta_info"]["cached_tokens"] >= prompt.num_context
    assert again["output_ids"] == result["output_ids"]


def test_an_answer_does_not_depend_on_what_was_cached(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    prompt = forest_prompt(rng)
    others = [
        TreePrompt(prompt.system, prompt.trees[::-1], prompt.task),
        TreePrompt(prompt.system, prompt.trees[1:3], random_tokens(rng, 3)),
    ]
    fused = fuse(prompt, select="first", recompute=0.3)
    cold, _ = ask(served, fused)
    warm, report = ask(served, fused)
    assert report["settled"] == 0
    logprobs = [cold["meta_info"]["output_token_logprobs"]]
    logprobs.append(warm["meta_info"]["output_token_logprobs"])
    for order in range(4):
        served.engine.flush()
        for other in rng.sample([*others, fuse(others[0]), fuse(others[1], recompute=0)], order):
            served.engine.ask(other)
        result, _ = ask(served, fused)
        assert result["output_ids"] == cold["output_ids"]
        logprobs.append(result["meta_info"]["output_token_logprobs"])
    for each in logprobs[1:]:
        for (value, token, _), (first_value, first_token, _) in zip(each, logprobs[0], strict=True):
            assert token == first_token
            assert abs(value - first_value) < 1e-5


def draw_history(rng: random.Random, prompt: TreePrompt) -> list[TreePrompt]:
    """Requests that share trees, or beginnings of them, with a prompt: exact, plain and fused."""
    history: list[TreePrompt] = []
    for _ in range(rng.randrange(5)):
        trees = rng.sample(prompt.trees, rng.randrange(1, len(prompt.trees) + 1))
        trees = [rng.choice([tree, (tree[0][:1], []), (tree[0], tree[1][:1])]) for tree in trees]
        other = TreePrompt(prompt.system, trees, random_tokens(rng, 3))
        share, select = rng.choice([0, 0.4, 1]), rng.choice(["first", "random", "query"])
        fused = fuse(other, select=select, recompute=share, patches=rng.random() < 0.3)
        history.append(rng.choice([other, fused, fused, plain(other.tokens)]))
    return history


@pytest.mark.parametrize("total", [200, pytest.param(1_000, marks=pytest.mark.slow)])
def test_whatever_came_before_an_answer_is_the_same(
    served: Served, rng: random.Random, total: int
) -> None:
    """Each history is another tenant's, whose cache is empty."""
    prompt = forest_prompt(rng, num_trees=5)
    asked = [
        fuse(prompt, select="first", recompute=0.3),
        fuse(prompt, select="random", seed=4, recompute=0.2, patches=True),
    ]
    first: dict[int, list[tuple[float, int]]] = {}
    for number in range(total // len(ENGINES)):
        for other in draw_history(rng, prompt):
            served.engine.ask(other, 1, extra_key=f"tenant {number}")
        result, report = ask(served, asked[number % 2], extra_key=f"tenant {number}")
        assert (report["see"], report["missed"]) == ("fused", 0)
        found = [(row[0], row[1]) for row in result["meta_info"]["output_token_logprobs"]]
        expected = first.setdefault(number % 2, found)
        assert [token for _, token in found] == [token for _, token in expected]
        assert max(abs(a - b) for (a, _), (b, _) in zip(found, expected, strict=True)) < 1e-5


def test_cached_nodes_are_never_written(served: Served, rng: random.Random) -> None:
    prompt = forest_prompt(rng)
    served.ask(prompt)
    for share in (0.1, 0.5, 0.9):
        ask(served, fuse(prompt, recompute=share, select="random", seed=3))
        result = served.ask(prompt)  # judged by the oracle: reads every node
        assert result["meta_info"]["depcache"]["missed"] == 0


def test_rows_that_begin_alike_and_rows_within_others(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    first, other = random_tokens(rng, 3), random_tokens(rng, 3)
    trees = [
        ([*first, *other], []),
        ([*first, *random_tokens(rng, 2)], []),
        (first, [chain_tree(rng, 2), chain_tree(rng, 3)]),
    ]
    prompt = TreePrompt(random_tokens(rng, 4), trees, random_tokens(rng, 3))
    chosen = [7, 10, 12, 17]
    for _ in range(2):
        result, _ = ask(served, fuse(prompt, chosen))
        assert error_of(oracle, prompt, chosen, result) < ORACLE_LOGPROB


def test_a_wrong_selection_would_be_seen(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    prompt = forest_prompt(rng)
    chosen = list(context(prompt))[-6:]
    result, _ = ask(served, fuse(prompt, chosen))
    assert error_of(oracle, prompt, chosen, result) < ORACLE_LOGPROB
    assert is_wrong(oracle, prompt, chosen[:-3], result)


def test_fused_and_other_requests_run_in_one_batch(
    served: Served, oracle: FusedOracle, rng: random.Random
) -> None:
    prompts = [forest_prompt(rng) for _ in range(3)]
    asked: list[TreePrompt] = []
    for prompt in prompts:
        asked += [fuse(prompt, select="first", recompute=0.2), prompt, plain(prompt.tokens)]
    results = served.engine.generate(asked)
    for prompt, result in zip(asked, results, strict=True):
        if not isinstance(prompt, FusedPrompt):
            served.judge(prompt, result)


def test_without_a_pin_what_is_cheaper_is_done(served: Served, rng: random.Random) -> None:
    prompt = forest_prompt(rng, num_trees=6)
    served.engine.ask(plain(prompt.tokens))
    result, report = ask(served, fuse(prompt, pin=False))
    served.judge(plain(prompt.tokens), result)
    assert report["see"] == "flat"  # all of it is a cached prefix
    assert "no more tokens" in report["fallback_reason"]
    assert report["differs"] == []
    seen = [report["see"]]
    for _ in range(4):
        rng.shuffle(prompt.trees)
        again = TreePrompt(prompt.system, prompt.trees, random_tokens(rng, 4))
        _, report = ask(served, fuse(again, pin=False))
        seen.append(report["see"])
    assert seen[-1] == "fused"  # the rows come again, in another order each time
    assert report["missed"] == report["settled"] == 0


def test_chunks_are_found_whatever_stood_before_them(served: Served, rng: random.Random) -> None:
    chunks = dict(zip("abc", random_forest(rng, 3, levels=1), strict=True))
    lens = {name: len(tokens) for name, (tokens, _) in chunks.items()}
    for order in itertools.permutations(("a", "bc", "abc")):
        system = random_tokens(rng, 4)
        for number, names in enumerate(order):
            known = set("".join(order[:number]))
            prompt = TreePrompt(system, [chunks[each] for each in names], random_tokens(rng, 3))
            result, report = ask(served, fuse(prompt, recompute=0))
            new = sum(lens[name] for name in set(names) - known)
            if report["see"] == "fused":
                assert report["settled"] == (new + (0 if number else len(system)) + 1 if new else 0)
                assert report["missed"] == report["recomputed"] == 0
            else:  # one chunk alone sees nothing but itself either way
                assert names == "a"
                served.judge(plain(prompt.tokens), result)
        cached = served.engine.check_conservation()["cached_tokens"]
        for names in ("cba", "bac", "ca"):
            prompt = TreePrompt(system, [chunks[each] for each in names], random_tokens(rng, 3))
            _, report = ask(served, fuse(prompt, recompute=0))
            assert report["settled"] == report["missed"] == 0
        assert served.engine.check_conservation()["cached_tokens"] == cached  # one copy of each
