# SPDX-License-Identifier: Apache-2.0
"""A fault of ours while the scheduler serves a request ends that request and nothing else (P6).

The faults are planted in the scheduler's process, in each call of ours that it makes for one
request: in place of the call, and behind it, when everything has changed already. Beside the
request that meets one, others run; their answers are judged, and no slot may be lost.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from fastapi import HTTPException

from tests.e2e.served import EngineCase, Served
from tests.helpers.forked import PREPARE
from tests.helpers.prompts import UNLUCKY_TOKEN, TreePrompt, plain, random_forest, random_tokens

pytestmark = pytest.mark.sglang

ENVIRONMENT = {
    PREPARE: "tests.helpers.planted",
    "DEPCACHE_HOST_GB": "0.02",
    "DEPCACHE_LOAD_POLICY": "always",
}
ARGUMENTS = {"max_total_tokens": 900, "radix_eviction_policy": "lacr"}
CASES = [
    EngineCase(
        f"faults-{name}", "llama_gqa", "auto", chunk, overlap, arguments=ARGUMENTS,
        environment=ENVIRONMENT,
    )
    for name, chunk, overlap in (("whole", 512, True), ("chunked", 16, False))
]  # fmt: skip

WHEN = pytest.mark.parametrize("when", ["before", "after"])
LAYOUT = pytest.mark.parametrize("layout", ["tree", "staggered", "plain"])


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> EngineCase:
    return request.param


@pytest.fixture
def rng() -> random.Random:
    return random.Random(23)


def make_prompt(rng: random.Random, layout: str) -> TreePrompt:
    if layout == "plain":
        return plain(random_tokens(rng, 40))
    return TreePrompt(random_tokens(rng, 5), random_forest(rng, 4), random_tokens(rng, 6), layout)


def in_other_order(rng: random.Random, prompt: TreePrompt) -> TreePrompt:
    return TreePrompt(prompt.system, prompt.trees[::-1], random_tokens(rng, 6), prompt.layout)


async def answers_beside(served: Served, doomed: TreePrompt, rid: str, others: Any) -> list[Any]:
    """The answer or the error of `doomed`, and of `others`, which arrive with it."""
    asked = [served.engine.answer(doomed, 6, rid=rid)]
    asked += [served.engine.answer(prompt, 12) for prompt in others]
    return await asyncio.gather(*asked, return_exceptions=True)


def ask_beside(served: Served, rng: random.Random, doomed: TreePrompt, rid: str) -> Any:
    """What becomes of `doomed`; the others' answers are judged, and then the same one's, asked
    again with an id that nothing happens to."""
    others = [make_prompt(rng, "tree"), make_prompt(rng, "plain")]
    found, *answers = served.engine.run(answers_beside(served, doomed, rid, others))
    for prompt, answer in zip(others, answers, strict=True):
        assert not isinstance(answer, BaseException), answer
        served.judge(prompt, answer)
    if doomed.is_plain or doomed.layout == "tree":
        served.ask(doomed)
    return found


def failed_with(found: Any, words: str) -> None:
    assert isinstance(found, HTTPException), found
    assert found.status_code == 500
    assert words in found.detail
    assert "PlantedError" in found.detail


@LAYOUT
@WHEN
def test_a_request_that_cannot_be_matched_fails_alone(
    served: Served, rng: random.Random, layout: str, when: str
) -> None:
    prompt = make_prompt(rng, layout)
    found = ask_beside(served, rng, prompt, f"fault:match:{when}")
    failed_with(found, "could not match the request")


@LAYOUT
@WHEN
def test_a_request_whose_rows_cannot_be_cached_fails_alone(
    served: Served, rng: random.Random, layout: str, when: str
) -> None:
    prompt = make_prompt(rng, layout)
    found = ask_beside(served, rng, prompt, f"fault:cache:{when}")
    failed_with(found, "could not cache the request's rows")


@WHEN
def test_a_request_whose_rows_cannot_be_placed_fails_alone(
    served: Served, rng: random.Random, when: str
) -> None:
    prompt = make_prompt(rng, "tree")
    found = ask_beside(served, rng, prompt, f"fault:place:{when}")
    failed_with(found, "could not place the request's rows")


@LAYOUT
@WHEN
def test_an_answer_that_is_complete_goes_out_whatever_fails_behind_it(
    served: Served, rng: random.Random, layout: str, when: str
) -> None:
    prompt = make_prompt(rng, layout)
    found = ask_beside(served, rng, prompt, f"fault:finish:{when}")
    assert len(found["output_ids"]) == 6
    if layout != "staggered":
        served.judge(prompt, found)


@WHEN
def test_rows_that_cannot_be_shifted_are_computed(
    served: Served, rng: random.Random, when: str
) -> None:
    prompt = make_prompt(rng, "staggered")
    served.engine.ask(prompt)
    moved = in_other_order(rng, prompt)
    found = ask_beside(served, rng, moved, f"fault:move:{when}")
    report = found["meta_info"]["depcache"]
    assert (report["shifted"], report["loaded"]) == (0, 0)
    assert report["missed"] > 0
    assert "PlantedError" in report["fallback_reason"]
    again = served.engine.ask(moved)["meta_info"]["depcache"]
    assert again["missed"] == 0


@WHEN
def test_rows_that_cannot_be_loaded_are_computed_or_shared(
    served: Served, rng: random.Random, when: str
) -> None:
    prompt = make_prompt(rng, "tree")
    served.ask(prompt)
    for _ in range(24):  # the pool fills several times over, with other trees
        served.ask(make_prompt(rng, "tree"), num_new=2)
    found = ask_beside(served, rng, prompt, f"fault:move:{when}")
    served.judge(prompt, found)
    assert "PlantedError" in found["meta_info"]["depcache"]["fallback_reason"]


def test_a_broken_request_that_is_aborted_gives_back_what_it_holds(
    served: Served, rng: random.Random
) -> None:
    prompt = make_prompt(rng, "tree")

    async def abort_soon() -> Any:
        rid = "fault:cache:after:aborted"
        task = asyncio.ensure_future(served.engine.answer(prompt, 200, rid=rid))
        await asyncio.sleep(0)
        served.engine.abort(rid)
        return (await asyncio.gather(task, return_exceptions=True))[0]

    served.engine.run(abort_soon())
    served.ask(prompt)


def test_waiting_requests_that_cannot_be_read_run_all_the_same(
    served: Served, rng: random.Random
) -> None:
    prompts = [make_prompt(rng, "tree") for _ in range(6)]

    async def together() -> list[Any]:
        asked = [
            served.engine.answer(prompt, 6, rid=f"fault:queue:before:{number}")
            for number, prompt in enumerate(prompts)
        ]
        return await asyncio.gather(*asked)

    for prompt, answer in zip(prompts, served.engine.run(together()), strict=True):
        served.judge(prompt, answer)


def test_without_look_ahead_after_a_fault_in_it_requests_run_all_the_same(
    served: Served, rng: random.Random
) -> None:
    prompts = [
        TreePrompt([UNLUCKY_TOKEN, *random_tokens(rng, 3)], random_forest(rng, 3), [20, 21, 22])
        for _ in range(6)
    ]
    served.ask_together(prompts)
    served.ask_together([make_prompt(rng, "tree") for _ in range(6)])
