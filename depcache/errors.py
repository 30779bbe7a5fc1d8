# SPDX-License-Identifier: Apache-2.0
"""The errors DepCache raises on purpose: one sentence each, safe to send to a client."""

from __future__ import annotations

import reprlib
from typing import Any

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = _REPR.maxarray = 4
_REPR.maxlevel = 3


class DepCacheError(Exception):
    """Base of every error that DepCache raises on purpose."""


class PromptError(DepCacheError, ValueError):
    """A prompt, its paths or its wire form is malformed; servers answer HTTP 400."""


class ConfigError(DepCacheError, ValueError):
    """A setting is unknown, out of range or not supported together with another."""


class ServerError(DepCacheError):
    """A server could not be reached, or answered something DepCache cannot use."""

    status: int | None = None
    """The HTTP status it answered with; None where there was no answer."""


def explain_validation(error: Any, name: str = "") -> str:
    """One sentence for the first thing that a pydantic ValidationError found wrong.

    name  of the value that was validated, in front of what is inside it
    """
    first = error.errors(include_url=False, include_context=False)[0]
    where = name
    for part in first["loc"]:
        dot = "." if where and not isinstance(part, int) else ""
        where += f"[{part}]" if isinstance(part, int) else f"{dot}{part}"
    if first["type"] == "missing":
        return f"{where} is missing: send it"
    if first["type"] == "value_error":  # a sentence of our own
        return first["msg"].removeprefix("Value error, ")
    reason = first["msg"][0].lower() + first["msg"][1:]
    return f"{where or 'it'} is {shorten(first['input'])}: {reason}"


def shorten(value: object, max_len: int = 120) -> str:
    """`repr(value)` for an error sentence: never longer than `max_len`, never raises.

    Values come from outside: a 5,000-digit int or a list nested 100,000 deep makes
    `repr` itself raise, and a 16 MiB string must not be copied to be shown.
    """
    try:
        text = _REPR.repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= max_len else text[: max_len - 3] + "..."
