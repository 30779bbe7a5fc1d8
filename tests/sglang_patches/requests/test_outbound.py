# SPDX-License-Identifier: Apache-2.0
"""The report on reuse joins an OpenAI reply, and the last chunk of a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_patches.requests.outbound import add_to_reply, add_to_stream, collect

pytestmark = pytest.mark.sglang

REPORT = {"shared": 3}
DONE = "data: [DONE]\n\n"


def chunk(**fields: Any) -> str:
    """As SGLang writes one: without spaces."""
    document = {"id": "1", "object": "chunk", "created": 5, "model": "m", **fields}
    return f"data: {json.dumps(document, separators=(',', ':'))}\n\n"


TEXT = chunk(choices=[{"index": 0, "delta": {"content": "[]"}}])
USAGE = chunk(choices=[], usage={"prompt_tokens": 4})


def stream(chunks: list[str], *reports: dict[str, Any]) -> list[str]:
    """The chunks as a client gets them; the reports come before the second one."""

    async def source() -> AsyncIterator[str]:
        for number, each in enumerate(chunks):
            if number == 1:
                for report in reports:
                    collect(report)
            yield each

    async def run() -> list[str]:
        return [each async for each in add_to_stream(source())]

    return asyncio.run(run())


def read(chunk: str) -> dict[str, Any]:
    return json.loads(chunk.removeprefix("data: "))


def test_the_report_joins_the_chunk_with_the_usage() -> None:
    first, usage, done = stream([TEXT, USAGE, DONE], REPORT)
    assert (first, done) == (TEXT, DONE)
    assert read(usage) == {**read(USAGE), "metadata": {"depcache": REPORT}}


def test_without_usage_the_report_comes_in_a_last_chunk_like_it() -> None:
    first, second, last, done = stream([TEXT, TEXT, DONE], REPORT)
    assert (first, second, done) == (TEXT, TEXT, DONE)
    about = {"id": "1", "object": "chunk", "created": 5, "model": "m"}
    assert read(last) == {**about, "choices": [], "metadata": {"depcache": REPORT}}


def test_a_stream_without_a_report_is_passed_on_as_it_is() -> None:
    chunks = [TEXT, USAGE, DONE]
    assert stream(chunks) == chunks
    assert stream([DONE], REPORT) == [DONE]


def test_an_error_in_a_stream_is_passed_on() -> None:
    error = 'data: {"error":{"message":"aborted"}}\n\n'
    assert stream([TEXT, error, DONE], REPORT)[:2] == [TEXT, error]


def test_a_report_outside_of_a_stream_is_nobodys() -> None:
    collect(REPORT)
    assert stream([TEXT, USAGE, DONE]) == [TEXT, USAGE, DONE]


@pytest.mark.parametrize(
    ("reports", "metadata"),
    [
        ([REPORT], {"depcache": REPORT}),
        ([REPORT, None], {"depcache": [REPORT, None]}),
        ([None], None),
    ],
    ids=["one prompt", "two prompts", "no dependency data"],
)
def test_a_reply_has_the_report_of_each_prompt(reports: list[Any], metadata: Any) -> None:
    response = SimpleNamespace(metadata=None)
    results = [{"meta_info": {} if each is None else {"depcache": each}} for each in reports]
    add_to_reply(response, results)
    assert response.metadata == metadata


def test_other_metadata_of_a_reply_stays() -> None:
    response = SimpleNamespace(metadata={"weight_version": "a"})
    add_to_reply(response, [{"meta_info": {"depcache": REPORT}}])
    assert response.metadata == {"weight_version": "a", "depcache": REPORT}


def test_a_reply_that_can_have_no_metadata_is_left_alone() -> None:
    response = SimpleNamespace()
    add_to_reply(response, [{"meta_info": {"depcache": REPORT}}])
    assert vars(response) == {}
