# SPDX-License-Identifier: Apache-2.0
"""Replies on their way out: where the OpenAI routes carry the report on reuse.

`metadata.depcache` of a reply; of a stream, the metadata of its last chunk, the one with
`choices: []` that OpenAI clients already read usage from.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

from sglang_patches.requests.state import ATTRIBUTE

_DONE = "data: [DONE]\n\n"
_NO_CHOICES = '"choices":[]'  # as pydantic writes it
# The reports of the requests that one HTTP request made, in order of arrival. A list in a
# context variable, because SGLang starts a stream in one task and goes on in others.
_collected: ContextVar[list[dict[str, Any]] | None] = ContextVar("depcache_reports", default=None)


def collect(report: dict[str, Any]) -> None:
    """Note a report for the HTTP request that is being answered."""
    reports = _collected.get()
    if reports is not None:
        reports.append(report)


def add_to_reply(response: Any, results: list[dict[str, Any]]) -> None:
    """Set `metadata.depcache` of an OpenAI reply; a list when the request had several prompts."""
    reports = [result["meta_info"].get(ATTRIBUTE) for result in results]
    if not any(reports) or not hasattr(response, "metadata"):
        return
    report = reports[0] if len(reports) == 1 else reports
    response.metadata = {**(response.metadata or {}), ATTRIBUTE: report}


async def add_to_stream(chunks: AsyncIterator[str]) -> AsyncIterator[str]:
    """Pass server-sent events on; the report joins the usage chunk, or comes as one like it."""
    reports: list[dict[str, Any]] = []
    _collected.set(reports)
    last = ""
    is_reported = False
    async for chunk in chunks:
        # Only the usage chunk has no choices; the others are passed on unread.
        if reports and _NO_CHOICES in chunk and '"usage":{' in chunk:
            event = _parse(chunk)
            event["metadata"] = {ATTRIBUTE: reports[0]}
            chunk = f"data: {json.dumps(event)}\n\n"
            is_reported = True
        elif reports and chunk == _DONE and last and not is_reported:
            names = ("id", "object", "created", "model")
            final = {name: value for name, value in _parse(last).items() if name in names}
            final |= {"choices": [], "metadata": {ATTRIBUTE: reports[0]}}
            yield f"data: {json.dumps(final)}\n\n"
        elif chunk.startswith("data: {"):
            last = chunk
        yield chunk


def _parse(chunk: str) -> dict[str, Any]:
    return json.loads(chunk.removeprefix("data: "))
