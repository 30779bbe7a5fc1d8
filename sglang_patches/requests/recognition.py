# SPDX-License-Identifier: Apache-2.0
"""Tables and facts that the server finds in plain prompts by itself, where its settings say so.

A prompt in which nothing is found goes on untouched, and so does one whose outline proves to be of
no use: recognition never refuses a request.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from depcache.config import Config
from depcache.errors import ConfigError, PromptError
from depcache.prompt.layout_names import Layout
from depcache.prompt.outline import Outline
from depcache.prompt.recompute import row_params
from depcache.recognition.recognise import recognise
from depcache.recognition.table import choose
from sglang_patches.requests.catalog import CATALOG
from sglang_patches.requests.params import (
    custom_params_of,
    has_dependencies,
    read_match,
    without_match,
)

logger = logging.getLogger("depcache")

RECOGNISED = "depcache_recognised"
"""Attribute of a request whose rows the server found: how many, by the name of their recogniser."""

LAYOUT: Layout = "tree"

TABLES = "tables"
"""Name that stands for the recogniser of tables."""

_names: Sequence[str] | None = ()
_recompute: float | None = None


def set_recognisers(config: Config) -> None:
    """Take over the settings, for this process. Raises ConfigError for an unknown name."""
    global _names, _recompute
    _names, _recompute = read_names(config.recognise), config.recompute


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


def is_on(match: bool | None = None) -> bool:
    """Whether anything is looked for in a request that says `match`, see `params.MATCH`."""
    if match is False:
        return False
    return _names is None or bool(_names) or CATALOG.tables(match) is not None


def find_context(
    prompt: str | Sequence[Any], match: bool | None = None
) -> tuple[Outline, dict[str, int]] | None:
    """The tables in a text or in messages, or else the facts; None where there are none, or nobody
    looks.

    match  what the request says of being searched, see `params.MATCH`

    Returns their outline, and rows by the name of their recogniser. Gives up after about 0.1 s each
    for tables and facts, and raises nothing.
    """
    if not is_on(match):
        return None
    try:
        tables = CATALOG.tables(match)
        outline = None if tables is None else tables.recognise(prompt).outline
        if outline is not None:
            return outline, {TABLES: outline.num_rows}
        if _names is not None and not _names:
            return None
        found = recognise(prompt, _names)
    except Exception:  # a pattern of somebody's own, or a fault of ours: it costs the reuse alone
        logger.exception("recognition failed; the prompt goes on as it is")
        return None
    if found.outline is None:
        return None
    return found.outline, dict(Counter(row.name for row in found.rows))


def params_of(outline: Outline, rows: Mapping[str, int]) -> dict[str, Any]:
    """What a request says that holds what `find_context` found, as its sender would say it.

    Facts are fused where the settings say so. Tables stay as they are, whatever they see.
    """
    return row_params(outline, LAYOUT, None if TABLES in rows else _recompute)


def recognise_text(obj: Any) -> None:
    """Give a plain prompt of one text the outline of what the server finds in it.

    For `/v1/completions` and `/generate`; a chat is read before its template runs. Does nothing
    where nobody looks, or nothing is found. Raises PromptError for a wrong `params.MATCH`.
    """
    if not may_hold_context(obj):
        return
    params = custom_params_of(obj)
    if (found := find_context(obj.text, read_match(params))) is None:
        return
    outline, rows = found
    params = {**without_match(params), **params_of(outline, rows)}
    obj.sampling_params = {**(obj.sampling_params or {}), "custom_params": params}
    setattr(obj, RECOGNISED, rows)


def may_hold_context(obj: Any) -> bool:
    """Whether `recognise_text` would look into this request: a plain one that came as a text."""
    return (
        is_on(True)
        and isinstance(obj.text, str)
        and obj.input_ids is None
        and isinstance(obj.sampling_params, Mapping | None)
        and isinstance(custom_params_of(obj), Mapping | None)
        and not has_dependencies(obj)
        and is_on(read_match(custom_params_of(obj)))
    )
