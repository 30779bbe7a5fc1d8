# SPDX-License-Identifier: Apache-2.0
"""Facts that the server finds in plain prompts by itself, where the setting `recognise` says so.

A prompt in which nothing is found goes on untouched, and so does one whose outline proves to be of
no use: recognition never refuses a request.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from depcache.config import Config
from depcache.errors import ConfigError, PromptError
from depcache.prompt.outline import Outline
from depcache.recognition.recognise import recognise
from depcache.recognition.table import choose

logger = logging.getLogger("depcache")

RECOGNISED = "depcache_recognised"
"""Attribute of a request whose facts the server found: rows by the name of their recogniser."""

LAYOUT = "tree"

_names: Sequence[str] | None = ()


def set_recognisers(config: Config) -> None:
    """Take over the setting, for this process. Raises ConfigError for an unknown name."""
    global _names
    _names = read_names(config.recognise)


def read_names(setting: str) -> Sequence[str] | None:
    """The recognisers that the setting names: () for none, None for all."""
    if setting in ("off", ""):
        return ()
    if setting == "auto":
        return None
    names = [name.strip() for name in setting.split(",") if name.strip()]
    try:
        choose(names)
    except PromptError as error:
        raise ConfigError(f"setting recognise = {setting!r}: {error}") from None
    return names


def is_on() -> bool:
    """Whether anything is looked for."""
    return _names is None or bool(_names)


def find_facts(prompt: str | Sequence[Any]) -> tuple[Outline, dict[str, int]] | None:
    """The facts in a text or in messages; None where there are none, or nobody looks.

    Returns their outline, and rows by the name of their recogniser. Gives up after about 0.1 s, and
    raises nothing.
    """
    if not is_on():
        return None
    try:
        found = recognise(prompt, _names)
    except Exception:  # a pattern of somebody's own, or a fault of ours: it costs the reuse alone
        logger.exception("recognition failed; the prompt goes on as it is")
        return None
    if found.outline is None:
        return None
    return found.outline, dict(Counter(row.name for row in found.rows))
