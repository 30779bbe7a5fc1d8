# SPDX-License-Identifier: Apache-2.0
"""Read the JSON of SGLang's routes: pieces of answers, and the one sentence in an error."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from depcache.client.reply import ReuseReport, Usage
from depcache.errors import shorten


@dataclass(frozen=True, slots=True)
class Piece:
    """What one JSON document of an answer says; None where it says nothing.

    has_token  a token of the answer came with it, even if its text is still held back
    """

    text: str
    has_token: bool
    usage: Usage | None
    report: ReuseReport | None
    finish_reason: str | None
    token_ids: tuple[int, ...] | None


ReadPiece = Callable[[Mapping[str, Any]], Piece]


def read_chat_piece(data: Mapping[str, Any]) -> Piece:
    """A chat completion, or one chunk of its stream. Of several choices, the first."""
    choices = data.get("choices") or []
    choice = next((choice for choice in choices if choice.get("index", 0) == 0), {})
    message = choice.get("message") or choice.get("delta") or {}
    usage = data.get("usage")
    return Piece(
        text=message.get("content") or "",
        # SGLang opens a stream with the role, when the first token is there.
        has_token=bool(choice),
        usage=Usage.from_dict(usage) if usage else None,
        report=ReuseReport.from_dict((data.get("metadata") or {}).get("depcache")),
        finish_reason=choice.get("finish_reason"),
        token_ids=None,
    )


class GenerateReader:
    """Pieces of `/generate`, whose stream repeats the whole text so far each time."""

    def __init__(self) -> None:
        self._text_len = 0

    def __call__(self, data: Mapping[str, Any]) -> Piece:
        text = data.get("text") or ""
        new, self._text_len = text[self._text_len :], len(text)
        info = data.get("meta_info") or {}
        reason = info.get("finish_reason")
        ids = data.get("output_ids")
        return Piece(
            text=new,
            has_token=True,
            usage=Usage.from_dict(info),
            report=ReuseReport.from_dict(info.get("depcache")),
            finish_reason=reason.get("type") if isinstance(reason, Mapping) else reason,
            token_ids=tuple(ids) if ids is not None else None,
        )


def read_error(body: bytes | str) -> str:
    """The reason in an error body, in whichever of SGLang's and FastAPI's shapes it comes."""
    try:
        data = json.loads(body)
    except ValueError:
        text = body.decode(errors="replace") if isinstance(body, bytes) else body
        return shorten(text.strip()) if text.strip() else "no reason given"
    return find_reason(data) or shorten(data)


def find_reason(data: Any) -> str | None:
    """The sentence in a parsed error; None if there is none."""
    if isinstance(data, str):
        return data.strip().rstrip(".") or None
    if isinstance(data, Mapping):
        for key in ("message", "error", "detail"):
            reason = find_reason(data.get(key))
            if reason:
                return reason
    return None
