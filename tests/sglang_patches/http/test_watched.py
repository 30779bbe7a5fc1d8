# SPDX-License-Identifier: Apache-2.0
"""Prompts are remembered while somebody watches, in bounds, and not at all otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from depcache.cache.radix import to_key
from sglang_patches.http import watched
from sglang_patches.http.watched import KEPT_S, WatchedPrompts, latency_ms

NAMES = ("shared", "shifted", "loaded", "missed")


class Words:
    """A tokenizer that spells token ids."""

    def batch_decode(self, rows: list[list[int]]) -> list[str]:
        return [" ".join(map(str, row)) for row in rows]


def make_noted(first: int = 10, num_task: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """Report and trace: a system of 2, a root of 3 that is half shared, a leaf that is missed."""
    sources = np.array([[2, 0, 0, 0], [1, 0, 0, 2], [0, 0, 0, 1]])
    tokens = np.arange(first, first + 6 + num_task)
    trace = {
        "tokens": to_key(tokens),
        "system_len": 2,
        "lens": to_key(np.array([3, 1])),
        "parents": to_key(np.array([-1, 0])),
        "joins": {},
        "sources": to_key(sources),
        "tenant": None,
        "done_s": 12.5,
    }
    report = {"layout": "tree", "prompt_tokens": len(tokens), "context_tokens": 6}
    report |= dict(zip(NAMES, sources.sum(axis=0).tolist(), strict=True))
    return report | {"plain": num_task, "tail": 0, "fallback_reason": None}, trace


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


@pytest.fixture
def prompts(clock: list[float]) -> WatchedPrompts:
    return WatchedPrompts(lambda: clock[0])


def keep_on(prompts: WatchedPrompts) -> Any:
    async def run() -> Any:
        return prompts.keep_on()

    return asyncio.run(run())


def read(session: Any, after: int = 0) -> dict[str, Any]:
    return session.read(session.take(), after, Words())


def test_nothing_is_remembered_when_nobody_looks(
    prompts: WatchedPrompts, clock: list[float]
) -> None:
    prompts.note(*make_noted(), began_s=None)
    assert prompts.session is None
    session = keep_on(prompts)
    assert read(session)["prompts"] == []
    clock[0] += KEPT_S
    prompts.note(*make_noted(), began_s=None)
    assert session.num_held == 0
    # Another watch begins with nothing.
    prompts.note(*make_noted(), began_s=None)
    assert keep_on(prompts).name != session.name


def test_a_tail_that_was_cached_is_not_counted_as_computed(prompts: WatchedPrompts) -> None:
    """As far as an earlier prompt that was watched had it, as for the facts."""
    session = keep_on(prompts)
    report, trace = make_noted(num_task=4)
    warm = {**report, "shared": 6, "missed": 0, "tail": 3}
    for each in (report, warm):
        prompts.note(each, trace, began_s=None)
    first, second = read(session)["prompts"]
    assert first["compared"]["computed"] == 10  # what it had was from before
    assert second["compared"]["computed"] == 1


def test_all_is_forgotten_when_the_last_question_is_long_ago(
    prompts: WatchedPrompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "KEPT_S", 0.01)

    async def run() -> None:
        prompts.keep_on()
        while prompts.session is not None:  # no request and no question comes
            await asyncio.sleep(0.01)

    asyncio.run(run())


def test_to_ask_again_goes_on_with_the_same_watch(
    prompts: WatchedPrompts, clock: list[float]
) -> None:
    session = keep_on(prompts)
    clock[0] += KEPT_S / 2
    assert keep_on(prompts) is session
    clock[0] += KEPT_S / 2 + 1
    prompts.note(*make_noted(), began_s=None)
    assert session.num_held == 1
    prompts.forget()
    assert prompts.session is None


def test_the_page_is_told_words_and_sources(prompts: WatchedPrompts) -> None:
    session = keep_on(prompts)
    prompts.note(*make_noted(), began_s=12.25)
    told = read(session)
    (prompt,) = told["prompts"]
    assert (prompt["number"], prompt["ttft_ms"]) == (1, 250)
    assert prompt["system"] == {
        "num_tokens": 2,
        "text": "10 11",
        "shared": 2,
        "shifted": 0,
        "loaded": 0,
        "missed": 0,
    }
    root, leaf = prompt["table"]
    assert (root["text"], root["shared"], root["missed"], root["cached"]) == ("12 13 14", 1, 2, 1)
    assert (leaf["text"], leaf["parent"], leaf["missed"], leaf["position"]) == ("15", 0, 1, 5)
    assert prompt["task"] == {"num_tokens": 1, "text": "16"}
    assert prompt["trees"] == 1 and prompt["segments"] == 2
    # Both caches begin empty, and the prompt has one leaf: it is as long flat.
    totals = {"prompts": 1, "tree_tokens": 7, "flat_tokens": 7, "computed": 7, "plain_computed": 7}
    assert prompt["compared"] == told["compared"] == totals


def test_a_page_gets_what_it_has_not_yet(prompts: WatchedPrompts) -> None:
    session = keep_on(prompts)
    for number in range(3):
        prompts.note(*make_noted(10 * number), began_s=None)
    told = read(session, after=1)
    assert [prompt["number"] for prompt in told["prompts"]] == [2, 3]
    assert told["number"] == 3
    assert read(session, after=3)["prompts"] == []


def test_only_the_last_prompts_are_held(
    prompts: WatchedPrompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = keep_on(prompts)
    for number in range(watched.MAX_PROMPTS + 5):
        prompts.note(*make_noted(10 * number), began_s=None)
    told = read(session)
    assert len(told["prompts"]) == session.num_held == watched.MAX_PROMPTS
    assert told["number"] == told["compared"]["prompts"] == watched.MAX_PROMPTS + 5
    monkeypatch.setattr(watched, "MAX_KEPT_TOKENS", 20)
    prompts.note(*make_noted(500), began_s=None)
    assert len(read(session)["prompts"]) == 2  # of 7 tokens each
    prompts.note(*make_noted(500, num_task=100), began_s=None)
    assert len(read(session)["prompts"]) == 1  # the newest, however long


@pytest.mark.parametrize(("name", "bound"), [("MAX_WAITING", 2), ("MAX_WAITING_TOKENS", 15)])
def test_more_than_can_wait_is_only_counted(
    prompts: WatchedPrompts, monkeypatch: pytest.MonkeyPatch, name: str, bound: int
) -> None:
    monkeypatch.setattr(watched, name, bound)
    session = keep_on(prompts)
    for number in range(5):
        prompts.note(*make_noted(10 * number), began_s=None)
    assert session.num_held == 2
    told = read(session)
    assert (told["number"], told["skipped"]) == (2, 3)
    prompts.note(*make_noted(), began_s=None)
    assert read(session)["number"] == 3


def test_a_latency_of_two_clocks_is_none() -> None:
    assert latency_ms(None, 5.0) is None
    assert latency_ms(9.0, 5.0) is None
    assert latency_ms(1.0, 1e6) is None
    assert latency_ms(4.5, 5.0) == 500
