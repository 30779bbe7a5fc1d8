# SPDX-License-Identifier: Apache-2.0
"""The texts of a prompt that may hold context, and which of them the model has answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from depcache.errors import PromptError, shorten

ROLES = ("system", "developer", "user", "tool", "function")
"""Whose messages are read: everyone's but the model's own."""


class PromptText(NamedTuple):
    """One text of a prompt.

    message  number of the message; None is a text without messages
    is_past  the model has answered since
    """

    message: int | None
    text: str
    is_past: bool


def read_texts(prompt: str | Sequence[Any]) -> Iterator[PromptText]:
    """The texts of a prompt, or of the messages of a chat as OpenAI has them, in order.

    Raises PromptError for what is no prompt.
    """
    if isinstance(prompt, str):
        yield PromptText(None, prompt, is_past=False)
        return
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise PromptError(f"{shorten(prompt)} is no prompt: give a text or a list of messages")
    answered = max((i for i, message in enumerate(prompt) if _is_answer(message)), default=-1)
    for number, message in enumerate(prompt):
        text = text_of(message)
        if text is not None:
            is_turn = message["role"] not in ("system", "developer")
            yield PromptText(number, text, is_past=is_turn and number < answered)


def text_of(message: Any) -> str | None:
    """The text of a message that may be read; None where there is none, or more than one."""
    if not isinstance(message, Mapping) or message.get("role") not in ROLES:
        return None
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = [part.get("text") for part in content if isinstance(part, Mapping)]
    texts = [text for text in parts if isinstance(text, str)]
    return texts[0] if len(texts) == 1 else None


def _is_answer(message: Any) -> bool:
    """An answer in words; a call of a tool is none."""
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        return False
    return bool(message.get("content")) and not message.get("tool_calls")
