# SPDX-License-Identifier: Apache-2.0
"""The bare client reads what a stream says, and no broken one passes for an answer."""

from __future__ import annotations

from typing import Any

import pytest

from depcache.errors import ServerError
from eval.host.ask import Body, ask_all
from tests.eval.serve.fake_server import fake_server, say


def body(**told: Any) -> Body:
    messages = [{"role": "user", "content": say(**told)}]
    return Body.make("/v1/chat/completions", {"model": "m", "messages": messages}, max_tokens=1)


def test_answers_come_in_order_with_what_was_computed() -> None:
    with fake_server() as (url, bodies):
        first, second = ask_all(url, [body(prompt=30, cached=29), body(prompt=40, cached=0)])
    assert (first.prompt_tokens, first.computed_tokens) == (30, 1)
    assert (second.prompt_tokens, second.computed_tokens) == (40, 40)
    assert 0 < first.ttft_ms <= first.e2e_ms
    assert [each["max_tokens"] for each in bodies] == [1, 1]
    assert all(each["stream"] and each["stream_options"]["include_usage"] for each in bodies)


def test_the_first_event_counts_and_not_the_last() -> None:
    with fake_server() as (url, _):
        [answer] = ask_all(url, [body(gap_s=0.3)])
    assert answer.ttft_ms + 290 < answer.e2e_ms


@pytest.mark.parametrize("fault", ["refused", "dropped", "no usage"])
def test_a_broken_answer_is_an_error(fault: str) -> None:
    with fake_server() as (url, _), pytest.raises(ServerError):
        ask_all(url, [body(fault=fault)])


def test_a_server_that_is_not_there_is_an_error_with_its_address() -> None:
    with pytest.raises(ServerError, match=r"127\.0\.0\.1:9"):
        ask_all("http://127.0.0.1:9", [body()])
