# SPDX-License-Identifier: Apache-2.0
"""Promises P1 and P2: every answer equals the oracle's, whatever the cache holds.

Each test runs on every engine below; together the engines cover each attention plan, chunk
size, scheduling policy, the overlap scheduler on and off, and every kind of model.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.served import EngineCase, Served
from tests.helpers.engine import reuse_of
from tests.helpers.prompts import (
    LAYOUTS,
    Tree,
    TreePrompt,
    chain_tree,
    plain,
    random_forest,
    random_tokens,
    random_tree,
    with_new_child,
    without_child,
)
from tests.helpers.tolerance import ORACLE_LOGPROB

ENGINES = [
    EngineCase(
        "segments-chunk8", "llama_gqa", "segments", 8, overlap=False, long_layout="staggered"
    ),
    EngineCase("cascade-qwen2", "qwen2", "cascade", chunk=2048, long_layout="sequential"),
    EngineCase("masked-yarn-chunk64-lpm", "llama_yarn", "custom_mask", chunk=64, policy="lpm"),
    EngineCase(
        "cascade-llama3-chunk16-lpm", "llama3_rope", "cascade", 16, overlap=False, policy="lpm"
    ),
    EngineCase("segments-mha", "llama_mha", "segments", chunk=2048),
]
SLOW_ENGINES = [
    EngineCase("masked-chunk8", "llama_gqa", "custom_mask", chunk=8),
    EngineCase("cascade-chunk8", "llama_mha", "cascade", chunk=8, policy="lpm"),
    EngineCase("segments-yarn-chunk16", "llama_yarn", "segments", chunk=16),
    EngineCase("masked-qwen2-no-overlap", "qwen2", "custom_mask", chunk=2048, overlap=False),
    EngineCase("cascade-chunk64", "llama_gqa", "cascade", chunk=64),
    EngineCase("segments-llama3-lpm", "llama3_rope", "segments", chunk=64, policy="lpm"),
]

pytestmark = pytest.mark.sglang

every_layout = pytest.mark.parametrize("layout", LAYOUTS)
moving_layout = pytest.mark.parametrize("layout", LAYOUTS[1:])


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param(case, id=case.name) for case in ENGINES),
        *(pytest.param(case, id=case.name, marks=pytest.mark.slow) for case in SLOW_ENGINES),
    ],
)
def case(request: pytest.FixtureRequest) -> EngineCase:
    return request.param


@pytest.fixture(scope="module")
def served(running: Served) -> Served:
    return running


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)


@every_layout
def test_a_cold_prompt_is_computed_and_a_repeated_one_is_shared(
    served: Served, layout: str, rng: random.Random
) -> None:
    prompt = TreePrompt(
        random_tokens(rng, 12), random_forest(rng, 5), random_tokens(rng, 9), layout
    )
    cold, warm = served.ask_in_turn([prompt, prompt], num_new=8)
    assert reuse_of(cold) == (0, 0, prompt.num_context)
    assert reuse_of(warm) == (prompt.num_context, 0, 0)
    # Task and answer were long enough to be cached too, behind facts that stay where they are.
    num_tail = len(prompt.task) - 1 if layout == "tree" else 0
    assert warm["meta_info"]["cached_tokens"] == prompt.num_context + num_tail
    assert warm["output_ids"] == cold["output_ids"]


@every_layout
def test_reordered_trees_are_reused_for_another_task(
    served: Served, layout: str, rng: random.Random
) -> None:
    system, trees = random_tokens(rng, 12), random_forest(rng, 5)
    orders = [trees, trees[::-1], rng.sample(trees, 5), trees]
    prompts = [TreePrompt(system, order, random_tokens(rng, 7), layout) for order in orders]
    results = served.ask_in_turn(prompts)
    for prompt, result in zip(prompts[1:], results[1:], strict=True):
        shared, shifted, missed = reuse_of(result)
        assert missed == 0
        assert shared + shifted == prompt.num_context
        assert layout != "tree" or shifted == 0


@every_layout
def test_subsets_new_trees_and_new_siblings_reuse_what_is_there(
    served: Served, layout: str, rng: random.Random
) -> None:
    system = random_tokens(rng, 6)
    branching = (random_tokens(rng, 3), [chain_tree(rng, 4, 20), chain_tree(rng, 2, 21)])
    first, second, third, new = random_forest(rng, 4)
    histories = [
        [first, branching, second, third],
        [third, new, first],
        [with_new_child(rng, branching), second],
        [without_child(branching), with_new_child(rng, first), new],
        [(branching[0][:2], []), first],  # ends inside a cached run
        [(branching[0] + [30], branching[1]), second],  # leaves it
    ]
    served.ask_in_turn([TreePrompt(system, t, random_tokens(rng, 5), layout) for t in histories])


@every_layout
def test_trees_that_begin_alike_stand_whole_and_are_stored_once(
    served: Served, layout: str, rng: random.Random
) -> None:
    system, row = random_tokens(rng, 8), random_tokens(rng, 7)
    fork = (row[:3], [chain_tree(rng, 3, 20), chain_tree(rng, 2, 21)])
    rows = [(row, []), ([*row[:4], *random_tokens(rng, 3)], []), fork, (row, []), (row[:2], [])]
    others = random_forest(rng, 2)
    prompts = [
        TreePrompt(system, [others[0], *rows], random_tokens(rng, 5), layout),
        TreePrompt(system, [others[0], *rows], random_tokens(rng, 4), layout),
        TreePrompt(system, [rows[1], others[1], rows[3], rows[0]], random_tokens(rng, 6), layout),
        TreePrompt(system, [([*row, 30, 31], []), ([*row, 32], []), rows[2]], [5, 6], layout),
    ]
    assert all(prompt.has_twins for prompt in prompts)
    cold, warm, reordered, _ = served.ask_in_turn(prompts)
    assert reuse_of(cold) == (0, 0, prompts[0].num_context)
    if layout == "tree":
        assert reuse_of(warm) == (prompts[1].num_context, 0, 0)
        assert reuse_of(reordered)[2] == len(others[1][0]) + sum(
            len(tokens) for tokens, _ in _below(others[1])
        )


def _below(tree: Tree) -> list[Tree]:
    return [each for child in tree[1] for each in (child, *_below(child))]


@every_layout
@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
def test_requests_that_run_together_share_trees_at_different_positions(
    served: Served, layout: str, is_warm: bool, rng: random.Random
) -> None:
    # Without a system a shift is exact, so the order in which they are cached does not matter.
    system = random_tokens(rng, 10) if layout == "tree" else []
    common, *others = random_forest(rng, 6)
    prompts = [
        TreePrompt(system, [common, others[0]], random_tokens(rng, 6), layout),
        TreePrompt(system, [others[1], others[2], common], random_tokens(rng, 8), layout),
        TreePrompt(system, [others[3], common, others[0]], random_tokens(rng, 3), layout),
    ]
    served.engine.flush()
    if is_warm:
        served.ask(TreePrompt(system, [others[4], common], random_tokens(rng, 4), layout))
    results = served.ask_together(prompts)
    if is_warm:
        assert all(sum(reuse_of(result)[:2]) for result in results)


@moving_layout
def test_requests_that_run_together_move_one_tree_to_different_positions(
    served: Served, layout: str, rng: random.Random
) -> None:
    from tests.helpers.oracle import ShiftOracle

    system = random_tokens(rng, 10)
    common, *others = random_forest(rng, 5)
    warm_up = TreePrompt(system, [others[0], common], random_tokens(rng, 4), layout)
    prompts = [
        TreePrompt(system, [common, others[1]], random_tokens(rng, 6), layout),
        TreePrompt(system, [others[2], others[3], common], random_tokens(rng, 8), layout),
    ]
    served.engine.flush()
    shifts = ShiftOracle(served.oracle)
    served.judge_shifted(warm_up, served.engine.ask(warm_up), shifts)
    results = served.engine.generate(prompts)
    for prompt, result in zip(prompts, results, strict=True):
        served.judge_shifted(prompt, result, shifts)
        assert reuse_of(result)[1] > 0


@every_layout
def test_plain_and_dependency_requests_run_in_one_batch(
    served: Served, layout: str, rng: random.Random
) -> None:
    system = random_tokens(rng, 6) if layout == "tree" else []
    long, short = plain(random_tokens(rng, 90)), plain(random_tokens(rng, 3))
    prompts = [
        long,
        TreePrompt(system, random_forest(rng, 3), random_tokens(rng, 6), layout),
        short,
        TreePrompt(system, random_forest(rng, 2), random_tokens(rng, 2), layout),
        plain(long.tokens[:40] + random_tokens(rng, 5)),
    ]
    served.engine.flush()
    served.ask_together(prompts)
    warm = served.ask_together(prompts)
    # SGLang always computes the last prompt token.
    assert warm[0]["meta_info"]["cached_tokens"] == long.num_tokens - 1
    assert reuse_of(warm[1])[2] == 0


def test_plain_prompts_and_the_tree_layout_share_nodes(served: Served, rng: random.Random) -> None:
    """A path's KV in this layout is what a plain prompt of the same text computes."""
    system, task = random_tokens(rng, 6), random_tokens(rng, 5)
    tree = (random_tokens(rng, 5), [chain_tree(rng, 4, 20), chain_tree(rng, 3, 21)])
    path = system + tree[0] + tree[1][1][0]
    served.engine.flush()
    served.ask(TreePrompt(system, [tree], task))
    result = served.ask(plain(path + random_tokens(rng, 4)))
    assert result["meta_info"]["cached_tokens"] == len(path)
    other = system + tree[0] + random_tokens(rng, 7)
    served.ask(plain(other))
    grown = (tree[0], [*tree[1], (other[len(system) + 5 :], [])])
    assert reuse_of(served.ask(TreePrompt(system, [grown], task)))[2] == 0


@every_layout
def test_equal_requests_that_run_together_leave_one_copy(
    served: Served, layout: str, rng: random.Random
) -> None:
    system, trees = random_tokens(rng, 8), random_forest(rng, 4)
    prompts = [TreePrompt(system, trees, random_tokens(rng, 4), layout) for _ in range(4)]
    served.engine.flush()
    served.ask_together(prompts)
    state = served.engine.check_conservation()
    assert state["cached_tokens"] == prompts[0].num_context


@every_layout
def test_several_answers_to_one_prompt_are_all_exact(
    served: Served, layout: str, rng: random.Random
) -> None:
    prompt = TreePrompt(random_tokens(rng, 5), random_forest(rng, 3), random_tokens(rng, 4), layout)
    served.engine.flush()
    params = {"max_new_tokens": 4, "n": 3, "custom_params": prompt.params()}
    answers = served.engine.ask_raw(prompt.tokens, params)
    assert len(answers) == 3
    for answer in answers:
        served.judge(prompt, answer)


@every_layout
def test_an_answer_of_no_or_one_token_caches_the_context(
    served: Served, layout: str, rng: random.Random
) -> None:
    for num_new in (0, 1):
        prompt = TreePrompt(
            random_tokens(rng, 5), random_forest(rng, 3), random_tokens(rng, 4), layout
        )
        served.engine.flush()
        assert len(served.engine.ask(prompt, num_new)["output_ids"]) == num_new
        assert reuse_of(served.ask(prompt)) == (prompt.num_context, 0, 0)


def test_a_stream_is_the_same_answer_in_parts_with_the_same_report(
    served: Served, rng: random.Random
) -> None:
    prompt = TreePrompt(random_tokens(rng, 5), random_forest(rng, 3), random_tokens(rng, 4))
    whole = served.ask(prompt, num_new=8)
    parts: list[dict[str, Any]] = []
    served.engine.ask(prompt, 8, on_output=parts.append)
    assert len(parts) > 1
    assert parts[-1]["text"] == whole["text"]
    assert [token for part in parts for token in part["output_ids"]][-8:] == whole["output_ids"]
    assert {reuse_of(part) for part in parts} == {(prompt.num_context, 0, 0)}


def test_logprobs_inside_the_context_are_refused_and_the_engine_goes_on(
    served: Served, rng: random.Random
) -> None:
    prompt = TreePrompt(random_tokens(rng, 5), random_forest(rng, 3), random_tokens(rng, 4))
    with pytest.raises(ValueError, match="logprob_start_len 3"):
        served.engine.ask(prompt, 2, logprob_start_len=3)
    served.ask(prompt)


SHAPES: dict[str, Callable[[random.Random], tuple[list[int], list[Any]]]] = {
    "empty system": lambda rng: ([], random_forest(rng, 4)),
    "one tree": lambda rng: (random_tokens(rng, 5), [random_tree(rng, levels=5)]),
    "one token": lambda rng: (random_tokens(rng, 5), [chain_tree(rng, 1)]),
    "one token, no system": lambda rng: ([], [chain_tree(rng, 1)]),
    "tree of one token among others": lambda rng: (
        random_tokens(rng, 5),
        [chain_tree(rng, 7, 20), chain_tree(rng, 1, 21), chain_tree(rng, 3, 22)],
    ),
    "a long chain": lambda rng: (random_tokens(rng, 3), [chain_tree(rng, 200)]),
    "500 trees": lambda rng: (
        random_tokens(rng, 20),
        [chain_tree(rng, rng.randrange(1, 4), 16 + first) for first in range(500)],
    ),
}


@every_layout
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_prompt_is_exact(
    served: Served, layout: str, shape: str, rng: random.Random
) -> None:
    system, trees = SHAPES[shape](rng)
    prompts = [
        TreePrompt(system, order, random_tokens(rng, 5), layout) for order in (trees, trees[::-1])
    ]
    served.ask_in_turn(prompts, num_new=3)


def test_a_prompt_of_4000_tokens_is_exact(served: Served, rng: random.Random) -> None:
    system = random_tokens(rng, 100)
    branches = range(16, 36)
    trees = [
        (chain_tree(rng, 40, first)[0], [chain_tree(rng, 17, branch) for branch in branches])
        for first in range(16, 26)
    ]
    # The oracle takes seconds for it, so each engine gets one layout.
    prompt = TreePrompt(system, trees, random_tokens(rng, 100), served.case.long_layout)
    assert prompt.num_tokens == 4000
    served.engine.flush()
    cold = served.ask(prompt, num_new=3)
    warm = served.engine.ask(prompt, num_new=3)
    assert reuse_of(warm) == (3900, 0, 0)
    assert warm["output_ids"] == cold["output_ids"]
    for key in ("output_token_logprobs", "output_top_logprobs"):
        assert flat(warm["meta_info"][key]) == pytest.approx(
            flat(cold["meta_info"][key]), abs=ORACLE_LOGPROB
        )


def flat(rows: Any) -> list[float]:
    """All numbers of nested rows of log-probabilities."""
    if isinstance(rows, int | float):
        return [rows]
    return [number for row in rows if row is not None for number in flat(row)]


def test_random_batches_of_the_tree_layout_are_exact(served: Served, rng: random.Random) -> None:
    system, pool = random_tokens(rng, 9), random_forest(rng, 12)
    served.engine.flush()
    for _ in range(6):
        prompts = [
            TreePrompt(system, rng.sample(pool, rng.randrange(1, 7)), random_tokens(rng, 6))
            for _ in range(4)
        ]
        prompts.append(plain(system + random_tokens(rng, rng.randrange(1, 30))))
        served.ask_together(prompts)


@every_layout
def test_random_requests_one_by_one_are_exact(
    served: Served, layout: str, rng: random.Random
) -> None:
    system, pool = random_tokens(rng, 9), random_forest(rng, 8)
    prompts = [
        TreePrompt(system, rng.sample(pool, rng.randrange(1, 7)), random_tokens(rng, 4), layout)
        for _ in range(12)
    ]
    served.ask_in_turn(prompts, num_new=4)


@every_layout
def test_logprobs_of_the_task_are_exact_cold_and_warm(
    served: Served, layout: str, rng: random.Random
) -> None:
    prompt = TreePrompt(random_tokens(rng, 5), random_forest(rng, 2), random_tokens(rng, 8), layout)
    expected = served.oracle.score_task(prompt)
    served.engine.flush()
    for num_hits in (0, prompt.num_context):
        result = served.ask(prompt, 2, logprob_start_len=prompt.num_context)
        assert sum(reuse_of(result)[:2]) == num_hits
        rows = result["meta_info"]["input_token_logprobs"]
        assert [row[1] for row in rows] == prompt.task
        for step, (logprob, token, _) in enumerate(rows[1:]):
            assert logprob == pytest.approx(float(expected[step, token]), abs=ORACLE_LOGPROB)
