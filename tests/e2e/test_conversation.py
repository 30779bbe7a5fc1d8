# SPDX-License-Identifier: Apache-2.0
"""What follows the facts is cached behind them: a conversation computes its new turn and no more.

Every answer is judged by the oracle, which recomputes the whole conversation, so a tail that was
reused where it must not be is seen in the log-probabilities.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.served import EngineCase, Served
from tests.helpers.engine import start_engine
from tests.helpers.prompts import Tree, TreePrompt, plain, random_forest, random_tokens
from tests.helpers.tolerance import ORACLE_LOGPROB

NUM_TURNS = 8
TURN_TOKENS = 12  # of what the user says
ANSWER_TOKENS = 10

CASES = [
    EngineCase("conversation-chunk8", "llama_gqa", "segments", chunk=8),
    EngineCase(
        "conversation-host",
        "llama_gqa",
        "cascade",
        chunk=64,
        environment={"DEPCACHE_HOST_GB": "0.02", "DEPCACHE_LOAD_POLICY": "always"},
        arguments={"max_total_tokens": 420, "radix_eviction_policy": "lru"},
    ),
]

pytestmark = pytest.mark.sglang


@dataclass
class Conversation:
    """Turns over one context; `say` continues with what was answered."""

    system: list[int]
    trees: list[Tree]
    tail: list[int] = field(default_factory=list)

    def say(self, tokens: list[int]) -> TreePrompt:
        self.tail += tokens
        return TreePrompt(self.system, self.trees, list(self.tail))

    def hear(self, answer: list[int]) -> None:
        self.tail += answer


def new_conversation(rng: random.Random) -> Conversation:
    return Conversation(random_tokens(rng, 9), random_forest(rng, 4))


def computed(result: dict[str, Any]) -> int:
    return result["meta_info"]["prompt_tokens"] - result["meta_info"]["cached_tokens"]


def report_of(result: dict[str, Any]) -> dict[str, Any]:
    return result["meta_info"]["depcache"]


@pytest.fixture
def rng() -> random.Random:
    return random.Random(27)


@pytest.fixture(scope="session")
def stock(model_path: Callable[[str], Path]) -> list[int]:
    """Tokens that SGLang's own cache computes, turn by turn, in prompts of the same lengths."""
    rng = random.Random(27)
    talk, found = new_conversation(rng), []
    with start_engine(model_path("llama_gqa"), radix_cache_backend=None) as engine:
        for _ in range(NUM_TURNS):
            prompt = talk.say(random_tokens(rng, TURN_TOKENS))
            result = engine.ask(plain(prompt.tokens), ANSWER_TOKENS)
            found.append(computed(result))
            talk.hear(result["output_ids"])
    return found


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest, stock: list[int]) -> EngineCase:
    return request.param


@pytest.fixture
def host(served: Served) -> Served:
    if not served.case.environment:
        pytest.skip("needs a host tier and a small pool")
    return served


def talk_on(served: Served, rng: random.Random) -> list[tuple[TreePrompt, dict[str, Any]]]:
    """Eight turns, each judged by the oracle."""
    talk, turns = new_conversation(rng), []
    for _ in range(NUM_TURNS):
        prompt = talk.say(random_tokens(rng, TURN_TOKENS))
        result = served.ask(prompt, ANSWER_TOKENS)
        turns.append((prompt, result))
        talk.hear(result["output_ids"])
    return turns


def push_out(served: Served, rng: random.Random) -> None:
    """Fill the small pool several times over with other conversations."""
    for _ in range(12):
        served.ask(TreePrompt([], random_forest(rng, 6), random_tokens(rng, 30)), num_new=2)


def test_each_turn_computes_what_stock_sglang_computes(
    served: Served, rng: random.Random, stock: list[int]
) -> None:
    turns = talk_on(served, rng)
    assert [computed(result) for _, result in turns] == stock
    assert max(stock[1:]) <= TURN_TOKENS + 1  # the last token of an answer may be computed again
    for number, (_, result) in enumerate(turns[1:], 1):
        report = report_of(result)
        said_before = number * (TURN_TOKENS + ANSWER_TOKENS)
        assert (report["missed"], report["plain"]) == (0, said_before + TURN_TOKENS)
        assert report["plain"] - report["tail"] == stock[number]
        assert result["meta_info"]["cached_tokens"] == report["shared"] + report["tail"]


def test_each_turn_answers_as_a_cold_run_of_the_whole_conversation(
    served: Served, rng: random.Random
) -> None:
    for prompt, warm in talk_on(served, rng):
        served.engine.flush()
        cold = served.ask(prompt, ANSWER_TOKENS)
        assert report_of(cold)["tail"] == 0
        assert cold["output_ids"] == warm["output_ids"]


def test_another_context_does_not_find_the_tail(served: Served, rng: random.Random) -> None:
    talk = new_conversation(rng)
    task = random_tokens(rng, 30)
    served.ask(talk.say(task))
    assert report_of(served.ask(TreePrompt(talk.system, talk.trees, task)))["tail"] == 29
    for trees in (talk.trees[::-1], talk.trees[:-1], [*talk.trees, ([7, 8], [])]):
        result = served.ask(TreePrompt(talk.system, trees, task))
        assert report_of(result)["tail"] == 0
        assert report_of(result)["shared"] > 0
    report = report_of(served.ask(TreePrompt(talk.system[:-1], talk.trees, task)))
    assert report["tail"] == 0


@pytest.mark.parametrize("layout", ["staggered", "sequential"])
def test_layouts_that_move_keys_cache_no_tail(
    served: Served, rng: random.Random, layout: str
) -> None:
    prompt = TreePrompt([], random_forest(rng, 3), random_tokens(rng, 30), layout)
    served.ask(prompt)
    report = report_of(served.ask(prompt))
    assert (report["shared"], report["tail"]) == (prompt.num_context, 0)


def test_agents_share_the_beginning_of_the_tail(served: Served, rng: random.Random) -> None:
    """Also while they run together: what one has computed, the next ones find."""
    talk, role = new_conversation(rng), random_tokens(rng, 40)
    prompts = [
        TreePrompt(talk.system, talk.trees, role + random_tokens(rng, 5 + i)) for i in range(4)
    ]
    served.ask(prompts[0])
    for prompt in prompts[1:]:
        assert report_of(served.ask(prompt))["tail"] == len(role)
    for result in served.ask_together(prompts):
        assert report_of(result)["tail"] >= len(role)


def test_equal_requests_that_run_together_leave_one_copy(
    served: Served, rng: random.Random, stock: list[int]
) -> None:
    prompt = new_conversation(rng).say(random_tokens(rng, 20))
    served.ask_together([prompt] * 4, ANSWER_TOKENS)
    state = served.engine.check_conservation()
    assert state["cached_tokens"] == prompt.num_tokens + ANSWER_TOKENS - (stock[1] - TURN_TOKENS)


def test_another_salt_does_not_find_the_tail(served: Served, rng: random.Random) -> None:
    prompt = new_conversation(rng).say(random_tokens(rng, 30))
    for key in ("a", "b", None):
        assert report_of(served.ask(prompt, extra_key=key))["tail"] == 0
    for key in ("a", "b", None):
        assert report_of(served.ask(prompt, extra_key=key))["tail"] == 29


def test_logprobs_of_a_cached_tail_are_computed_and_exact(
    served: Served, rng: random.Random
) -> None:
    prompt = new_conversation(rng).say(random_tokens(rng, 40))
    expected = served.oracle.score_task(prompt)
    for num_tail in (0, 25):
        start = prompt.num_context + 25
        result = served.ask(prompt, 2, logprob_start_len=start)
        assert report_of(result)["tail"] == num_tail
        rows = result["meta_info"]["input_token_logprobs"]
        assert [row[1] for row in rows] == prompt.task[25:]
        for step, (logprob, token, _) in enumerate(rows[1:], 25):
            assert logprob == pytest.approx(float(expected[step, token]), abs=ORACLE_LOGPROB)


def test_a_stream_and_a_retry_after_an_abort_find_the_tail(
    served: Served, rng: random.Random, stock: list[int]
) -> None:
    """The half answer of a stream that was given up is cached; no slot is lost on the way."""
    talk = new_conversation(rng)
    prompt = talk.say(random_tokens(rng, TURN_TOKENS))
    seen: list[list[int]] = []

    def stop_early(output: dict[str, Any]) -> None:
        seen.append(output["output_ids"])
        if len(seen) == 5:
            served.engine.abort("given-up")

    ended = served.engine.run(
        served.engine.answer(prompt, 300, on_output=stop_early, rid="given-up")
    )
    assert ended["meta_info"]["finish_reason"]["type"] == "abort"
    served.engine.check_conservation()

    retry = served.engine.run(served.engine.answer(prompt, ANSWER_TOKENS, on_output=lambda _: None))
    served.judge(prompt, retry)
    assert report_of(retry)["tail"] == TURN_TOKENS - 1
    talk.hear(retry["output_ids"])
    result = served.ask(talk.say(random_tokens(rng, TURN_TOKENS)), ANSWER_TOKENS)
    assert computed(result) == stock[1]


def test_an_evicted_conversation_comes_back_from_the_host(host: Served, rng: random.Random) -> None:
    *_, (prompt, result) = talk_on(host, rng)
    push_out(host, rng)
    again = host.ask(prompt, ANSWER_TOKENS)
    report = report_of(again)
    assert (report["missed"], report["tail"]) == (0, len(prompt.task) - 1)
    assert report["loaded"] > 0
    assert again["output_ids"] == result["output_ids"]
    assert again["meta_info"]["cached_tokens"] == prompt.num_tokens - 1


def test_conversations_in_a_pool_that_is_too_small_stay_exact(
    host: Served, rng: random.Random
) -> None:
    """Contexts and tails push each other out while several requests run, and are retracted."""
    talks = [new_conversation(rng) for _ in range(4)]
    for _ in range(4):
        prompts = [talk.say(random_tokens(rng, TURN_TOKENS)) for talk in talks]
        for talk, result in zip(talks, host.ask_together(prompts, 20), strict=True):
            talk.hear(result["output_ids"])
    host.engine.check_conservation()
