# SPDX-License-Identifier: Apache-2.0
"""Chats of several turns on the real server: what reports and routes say of their tails."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from depcache.prompt.render import render
from tests.sglang_patches.conftest import ADMIN_KEY

pytestmark = pytest.mark.sglang

ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}
ROUTE = "/v1/chat/completions"
_fresh = count()


def first_turn(**fields: Any) -> dict[str, Any]:
    """A chat about facts that no test has sent before."""
    name = f"Explorer {next(_fresh)}"
    paths = [[name, "sailed to", "Brazil"], [name, "sailed to", "India"], ["Goa", "found by", name]]
    prompt = render(paths, f"Where did {name} sail to, and in which year was that?")
    body = {"model": "m", "messages": prompt.messages, "max_tokens": 16, "temperature": 0}
    return {**body, "ignore_eos": True, **prompt.extra_body, **fields}


def next_turn(body: dict[str, Any], reply: dict[str, Any], question: str) -> dict[str, Any]:
    answer = {"role": "assistant", "content": reply["choices"][0]["message"]["content"]}
    messages = [*body["messages"], answer, {"role": "user", "content": question}]
    return {**body, "messages": messages}


def report_of(reply: dict[str, Any]) -> dict[str, Any]:
    return reply["metadata"]["depcache"]


def test_a_second_turn_finds_the_first_and_explain_says_so_before(served) -> None:
    body = first_turn()
    first = served.post(ROUTE, body).json()
    assert report_of(first)["tail"] == 0
    second = next_turn(body, first, "And when?")
    told = served.post("/depcache/explain", second).json()
    reply = served.post(ROUTE, second).json()
    report = report_of(reply)
    # The answer's text may become other tokens than it was; the question before it does not.
    assert report_of(first)["plain"] <= report["tail"] < report["plain"]
    assert (told["tail"], told["missed"], told["plain"]) == (report["tail"], 0, report["plain"])
    cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == report["shared"] + report["tail"]


def test_a_given_up_stream_is_found_by_its_retry(served) -> None:
    body = first_turn(max_tokens=400)
    with served.client.stream("POST", ROUTE, json={**body, "stream": True}) as stream:
        lines = stream.iter_lines()
        for _ in range(12):
            next(lines)
    report = report_of(served.post(ROUTE, {**body, "max_tokens": 4}).json())
    assert report["tail"] == report["plain"] - 1


def test_salts_keep_tails_apart(served) -> None:
    body = first_turn(cache_salt="one")
    served.post(ROUTE, body)
    for salt, is_found in (("two", False), ("one", True), ("", False)):
        report = report_of(served.post(ROUTE, {**body, "cache_salt": salt}).json())
        assert (report["tail"] > 0) == is_found
        assert (report["shared"] == report["context_tokens"]) == is_found


def test_an_invalidated_fact_takes_the_conversations_about_it_along(served) -> None:
    body = first_turn()
    served.post(ROUTE, body)
    report = report_of(served.post(ROUTE, body).json())
    before = served.client.get("/depcache/status").json()["cache"]
    answer = served.client.post("/depcache/invalidate", json=body, headers=ADMIN).json()
    after = served.client.get("/depcache/status").json()["cache"]
    assert answer["in_use"] == 0
    assert answer["tokens"]["device"] == before["cached_tokens"] - after["cached_tokens"]
    # All of the facts, and of the tail at least what the second request found.
    assert answer["tokens"]["device"] > report["tail"] > 0
    again = report_of(served.post(ROUTE, body).json())
    assert again["tail"] == 0
    assert again["missed"] > 0


def test_counters_have_what_the_reports_have(served) -> None:
    before = served.client.get("/depcache/stats").json()["tokens"]
    body = first_turn()
    reports = [report_of(served.post(ROUTE, body).json()) for _ in range(2)]
    after = served.client.get("/depcache/stats").json()["tokens"]
    for name in ("shared", "missed", "plain", "tail"):
        assert after[name] - before[name] == sum(report[name] for report in reports)
    assert reports[1]["tail"] > 0


def test_a_conversation_about_the_beginning_of_an_invalidated_path_stays(served) -> None:
    """A fact that another chat ends in leads to that chat, also when what was below it is gone."""
    name = f"Explorer {next(_fresh)}"
    short, long = [name, "sailed to", "Brazil"], [name, "sailed to", "Brazil", "borders", "Peru"]
    question = "Where did this explorer sail to, and in which year was that?"
    chats = []
    for paths in ([short], [long]):
        prompt = render(paths, question)
        body = {"model": "m", "messages": prompt.messages, "max_tokens": 16, "ignore_eos": True}
        chats.append({**body, **prompt.extra_body})
        served.post(ROUTE, chats[-1])
    served.client.post("/depcache/invalidate", json=chats[1], headers=ADMIN)
    reports = [report_of(served.post(ROUTE, body).json()) for body in chats]
    assert reports[0]["missed"] == 0
    assert reports[0]["tail"] == reports[0]["plain"] - 1
    assert reports[1]["missed"] > 0
    assert reports[1]["tail"] == 0
