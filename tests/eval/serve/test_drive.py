# SPDX-License-Identifier: Apache-2.0
"""Against a server that is slow by plan: what is noted is what happened, and errors are errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from eval.serve.drive import Call, drive
from eval.serve.records import Record
from tests.eval.serve.fake_server import fake_server, say

pytestmark = pytest.mark.sglang  # openai comes with the server


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    with fake_server() as served:
        yield served


def chat(**told: Any) -> Call:
    return Call("chat", {"model": "m", "messages": [{"role": "user", "content": say(**told)}]})


def note(i: int) -> Record:
    return Record(f"r{i}", "fake", "none", "warm", 0, i)


def ask(server: tuple[str, list[dict[str, Any]]], *calls: Call, **how: Any) -> list[Record]:
    records, seconds = drive(server[0], calls, note, max_tokens=3, **how)
    assert [record.query_idx for record in records] == list(range(len(calls)))
    assert all(record.ended_s <= seconds for record in records)
    return records


def test_times_are_those_of_the_server(server: Any) -> None:
    [record] = ask(server, chat(first_s=0.2, gap_s=0.1, pieces=["x", "y", "z"]))
    assert not record.error
    assert record.ttft_s is not None and record.ttft_s >= 0.2
    assert len(record.itl_s) == 2
    # Two pieces may arrive together when the reader is late, but not sooner than they were sent.
    assert sum(record.itl_s) + record.ttft_s >= 0.4
    assert record.e2e_s >= sum(record.itl_s) + record.ttft_s
    assert record.output_text == "xyz"


def test_tokens_are_those_of_usage(server: Any) -> None:
    report = {"depcache": {"shared": 30, "missed": 5}}
    [record] = ask(server, chat(prompt=40, cached=30, metadata=report))
    assert (record.prompt_tokens, record.cached_tokens, record.computed_tokens) == (40, 30, 10)
    assert record.output_tokens == 2
    assert record.report == {"shared": 30, "missed": 5}


def test_completions_are_read_as_chats_are(server: Any) -> None:
    [record] = ask(server, Call("completions", {"model": "m", "prompt": say(prompt=7)}))
    assert (record.error, record.output_text, record.prompt_tokens) == ("", "ab", 7)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("refused", "400"),
        ("dropped", ""),
        ("unfinished", "broke off"),
        ("no usage", "no usage"),
    ],
)
def test_what_goes_wrong_is_an_error_and_stops_nothing(server: Any, fault: str, says: str) -> None:
    broken, fine = ask(server, chat(fault=fault), chat())
    assert broken.error and says in broken.error
    assert not fine.error


def test_an_answer_without_text_and_a_server_that_is_not_there_are_errors(server: Any) -> None:
    [record] = ask(server, chat(pieces=[]))
    assert "empty" in record.error
    [record] = ask(("http://127.0.0.1:9", []), chat())
    assert "Connection" in record.error


def test_users_ask_again_when_they_have_their_answer(server: Any) -> None:
    records = ask(server, *[chat(first_s=0.05)] * 6, concurrency=2)
    starts = sorted(record.sent_s for record in records)
    ends = sorted(record.ended_s for record in records)
    # The third is sent when the first answer is complete, not before.
    assert all(later >= earlier for later, earlier in zip(starts[2:], ends, strict=False))
    one = ask(server, *[chat(first_s=0.05)] * 3)
    assert all(b.sent_s >= a.ended_s for a, b in pairwise(one))


def test_an_open_loop_sends_when_requests_are_due(server: Any) -> None:
    due = [0.0, 0.1, 0.15]
    server[1].clear()
    # None is answered before all have come: a closed loop would wait for ever.
    records = ask(server, *[chat(together=3, first_s=0.3)] * 3, arrivals=due)
    assert [record.arrival_s for record in records] == due
    assert all(record.sent_s >= record.arrival_s for record in records)
    # All were on their way before the first was answered.
    assert max(r.sent_s for r in records) < min(r.ended_s for r in records)
    # Waiting before being sent counts.
    assert all(r.e2e_s >= r.sent_s - r.arrival_s + 0.3 for r in records)


def test_an_event_loop_of_milliseconds_sends_nothing_early(server: Any) -> None:
    """SGLang installs uvloop for its whole process; its timers go off up to one too early."""
    uvloop = pytest.importorskip("uvloop")
    kept = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:
        records = ask(server, *[chat()] * 40, arrivals=[0.01337 * i for i in range(40)])
    finally:
        asyncio.set_event_loop_policy(kept)
    assert all(record.sent_s >= record.arrival_s for record in records)


def test_what_is_sent(server: Any) -> None:
    server[1].clear()
    params = {"custom_params": {"depcache_version": 1}}
    call = chat()
    ask(server, Call("chat", {**call.fields, "extra_body": params}), stops_early=True)
    [body] = server[1]
    assert body["custom_params"] == params["custom_params"]
    assert body["ignore_eos"] is False and body["max_tokens"] == 3 and body["temperature"] == 0
    assert body["stream_options"] == {"include_usage": True}
