# SPDX-License-Identifier: Apache-2.0
"""Tables that see sets of tables: every answer equals the oracle's, whatever the cache holds."""

from __future__ import annotations

import random
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.e2e.served import EngineCase, Served
from tests.helpers.engine import reuse_of
from tests.helpers.joined_prompts import JoinedPrompt, diamonds, random_schema
from tests.helpers.prompts import LAYOUTS, TreePrompt, random_tokens

pytestmark = pytest.mark.sglang

ENGINES = [
    EngineCase("joins-segments-chunk8", "llama_gqa", "segments", chunk=8, overlap=False),
    EngineCase("joins-cascade-qwen2-chunk16", "qwen2", "cascade", chunk=16, policy="lpm"),
    EngineCase("joins-masked", "llama_gqa", "custom_mask", chunk=2048),
]
THOROUGH = (ENGINES[0], ENGINES[-1])
SLOW_ENGINES = [
    EngineCase("joins-segments", "qwen2", "segments", chunk=2048),
    EngineCase("joins-cascade-chunk8", "llama_gqa", "cascade", chunk=8),
    EngineCase("joins-masked-chunk16", "qwen2", "custom_mask", chunk=16),
]
NUM_DAGS = 200
"""For two of the engines, each with another plan; the others take a tenth."""

_fresh = count()


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param(case, id=case.name) for case in ENGINES),
        *(pytest.param(case, id=case.name, marks=pytest.mark.slow) for case in SLOW_ENGINES),
    ],
)
def case(request: pytest.FixtureRequest) -> EngineCase:
    return request.param


@pytest.fixture
def rng() -> random.Random:
    return random.Random(11)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_joins_are_exact_cold_warm_and_in_other_company(
    served: Served, layout: str, rng: random.Random
) -> None:
    tables, system = diamonds(), random_tokens(rng, 9)
    orders = [[0, 1, 2, 3, 4, 5, 6, 7], [2, 1, 0, 3, 7], [7, 2, 0, 1, 3, 5, 4, 6], [2, 3, 4]]
    prompts = [
        JoinedPrompt(system, tables, order, random_tokens(rng, 5), layout) for order in orders
    ]
    assert [len(prompt.joins) for prompt in prompts] == [3, 1, 3, 0]
    cold, subset, again, fewer = served.ask_in_turn(prompts)
    assert reuse_of(cold) == (0, 0, prompts[0].num_context)
    if layout == "tree":  # elsewhere, what begins like another row is kept once, at its place
        assert reuse_of(subset)[2] == reuse_of(again)[2] == 0
        # 3 sees 2 alone here, so it and what is below it are other tables than before.
        assert reuse_of(fewer)[2] == sum(len(tables[table][0]) for table in (3, 4))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_schemas_are_exact_in_turn(served: Served, layout: str, rng: random.Random) -> None:
    for num_tables in (4, 9, 16):
        tables = random_schema(rng, num_tables)
        system = random_tokens(rng, rng.choice([0, 6]))
        served.ask_in_turn(
            [
                JoinedPrompt(
                    system,
                    tables,
                    rng.sample(range(num_tables), rng.randint(1, num_tables)),
                    random_tokens(rng, 4),
                    layout,
                )
                for _ in range(5)
            ],
            num_new=4,
        )


def test_joins_that_run_together_with_other_prompts_are_exact(
    served: Served, rng: random.Random
) -> None:
    tables, system = random_schema(rng, 10), random_tokens(rng, 6)
    prompts: list[TreePrompt] = [
        JoinedPrompt(system, tables, rng.sample(range(10), 7), random_tokens(rng, 4))
        for _ in range(4)
    ]
    prompts += [TreePrompt(system, [(tables[0][0], [])], [5]), TreePrompt([], [], [*system, 7, 8])]
    served.ask_together(prompts)
    served.ask_together(prompts)


def test_warm_is_cold_token_for_token(served: Served, case: EngineCase) -> None:
    @settings(max_examples=NUM_DAGS if case in THOROUGH else NUM_DAGS // 10)
    @given(seed=st.integers(0, 2**32))
    def check(seed: int) -> None:
        compare_warm_with_cold(served, random.Random(seed))

    check()


def compare_warm_with_cold(served: Served, rng: random.Random) -> None:
    """One schema: a prompt of a tenant who has nothing, and of one who has asked two others."""
    # Not by emptying the cache, which waits for a second or two.
    nobody, asker = (f"tenant {next(_fresh)}" for _ in range(2))
    num_tables = rng.randint(3, 9)
    tables, system = random_schema(rng, num_tables), random_tokens(rng, rng.choice([0, 3]))

    def prompt_of(num: int) -> JoinedPrompt:
        present = rng.sample(range(num_tables), num)
        return JoinedPrompt(system, tables, present, random_tokens(rng, 3))

    wanted = prompt_of(rng.randint(2, num_tables))
    cold = served.engine.ask(wanted, 4, extra_key=nobody)
    assert reuse_of(cold) == (0, 0, wanted.num_context)
    others = [prompt_of(rng.randint(1, num_tables)) for _ in range(2)]
    for other in others:
        served.engine.ask(other, 1, extra_key=asker)
    warm = served.ask(wanted, 4, extra_key=asker)
    assert warm["output_ids"] == cold["output_ids"]
    # Found is the system and what saw the same set before.
    known = {(t, p.sees[t]) for p in others for t in p.order}
    lens = [len(tables[t][0]) for t in wanted.order if (t, wanted.sees[t]) not in known]
    shared, shifted, num_missed = reuse_of(warm)
    # A table that is not there may find its beginning: tables begin alike.
    assert shifted == 0 and sum(lens) - 2 * len(lens) <= num_missed <= sum(lens)
    assert shared + num_missed == wanted.num_context
