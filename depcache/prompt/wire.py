# SPDX-License-Identifier: Apache-2.0
"""The wire form: flat `custom_params` that say how a prompt depends on itself.

They travel in SGLang's `sampling_params.custom_params` (the top-level `custom_params` of the
OpenAI routes). All keys start with "depcache_", other keys are none of ours. The forms:

    ids      next to `input_ids` in pre-order: system length, segment lengths, segment parents.
             Version 2 allows segments with one parent that begin alike, and roots that see
             earlier segments
    outline  version 2, next to a text: which spans of it are context, and how they hang together.
             The text stands once, and a server without DepCache reads it as plain text
    text     version 1, next to a text that contains `template.flatten(paths)` exactly once: the
             server takes it as the outline of these paths

`python -m depcache.prompt.wire` prints the JSON Schema, which is `schema.json` beside this file.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from depcache.errors import PromptError, explain_validation, shorten
from depcache.prompt.forest import Forest, IntArray, find_twins
from depcache.prompt.outline import PREFIX, Outline
from depcache.prompt.template import get_template
from depcache.prompt.wire_forms import (
    JOINS_ARE_EXACT,
    FusableWire,
    Wire,
    WireIds,
    WireOutline,
    WireText,
)

SUPPORTED_VERSIONS = (1, 2)

MAX_TOKEN_ID = 2**31 - 1

_FORMS: dict[int, tuple[type[Wire], ...]] = {1: (WireIds, WireText), 2: (WireIds, WireOutline)}
_ONLY_IN_2 = {"depcache_segment_joins"}


def parse_wire(
    custom_params: Mapping[Any, Any] | None, *, max_paths: int | None = None
) -> WireIds | WireText | WireOutline | None:
    """The dependency data of a request; None when it has none and is a plain prompt.

    max_paths  refuse more paths or rows than this before anything is made of them

    Checks everything that can be checked without the prompt. Raises PromptError when a
    depcache_ key is unknown, missing or malformed, two forms are mixed, or the version is
    not supported. Keys without the prefix are left alone.
    """
    if custom_params is None:
        return None
    if not isinstance(custom_params, Mapping):
        raise PromptError(f"custom_params is {shorten(custom_params)}: send an object")
    params = {
        key: value
        for key, value in custom_params.items()
        if isinstance(key, str) and key.startswith(PREFIX)
    }
    if not params:
        return None
    wire = _read_form(params)
    if isinstance(wire, WireText):
        get_template(wire.template)
        num_rows, name = len(wire.rows), "depcache_paths"
    elif isinstance(wire, WireOutline):
        num_rows, name = wire.outline.num_rows, "depcache_outline"
        if wire.outline.sees and wire.recompute is not None:
            raise PromptError(JOINS_ARE_EXACT)
    else:
        return wire
    if max_paths is not None and num_rows > max_paths:
        raise PromptError(
            f"{name} holds {num_rows} {'paths' if name == 'depcache_paths' else 'rows'}, and this "
            f"server takes at most {max_paths}, one for each token of the model's context: send "
            "fewer paths"
        )
    if isinstance(wire, WireText):
        _ = wire.paths  # read now, so that all that is wrong is known here
    return wire


def without_wire(custom_params: Mapping[Any, Any]) -> dict[Any, Any]:
    """The `custom_params` that are none of ours."""
    return {
        key: value
        for key, value in custom_params.items()
        if not (isinstance(key, str) and key.startswith(PREFIX))
    }


def _read_form(params: dict[str, Any]) -> WireIds | WireText | WireOutline:
    """The form that the keys belong to, its values checked."""
    # The version comes first: what a newer one holds cannot be judged here.
    if "depcache_version" not in params:
        raise PromptError(f"depcache_version is missing: send {SUPPORTED_VERSIONS[-1]}")
    version = params["depcache_version"]
    if type(version) is not int or version not in SUPPORTED_VERSIONS:
        raise PromptError(
            f"depcache_version is {shorten(version)}: this server supports "
            f"{', '.join(map(str, SUPPORTED_VERSIONS))}"
        )
    shared = set((Wire if version == 1 else FusableWire).model_fields)
    none_of = set(FusableWire.model_fields) | (_ONLY_IN_2 if version == 1 else set())
    keys = {form: set(form.model_fields) - none_of for form in _FORMS[version]}
    known = shared.union(*keys.values())
    unknown = sorted(set(params) - known)
    if unknown:
        raise PromptError(
            f"{shorten(unknown[0])} is no key of version {version}: the keys are "
            f"{', '.join(sorted(known))}"
        )
    found = [form for form in keys if not keys[form].isdisjoint(params)]
    if len(found) != 1:
        what = "keys of both forms" if found else "no prompt structure"
        raise PromptError(
            f"custom_params has {what}: send either "
            f"{', or '.join(', '.join(sorted(own)) for own in keys.values())}"
        )
    try:
        wire = found[0].model_validate(params)
    except ValidationError as error:
        raise PromptError(explain_validation(error)) from None
    assert isinstance(wire, WireIds | WireText | WireOutline)
    return wire


def forest_from_wire(input_ids: Any, wire: WireIds) -> Forest:
    """The forest of a prompt in the ids form.

    input_ids  all prompt tokens in pre-order: list, `array.array` or NumPy array of ints

    Raises PromptError when the numbers do not describe these tokens, or in version 1 two siblings
    start with the same token: there they are one node of the prompt's tree.
    """
    tokens = read_input_ids(input_ids)
    forest = Forest.make(
        len(tokens),
        wire.depcache_system_len,
        wire.depcache_segment_lens,
        wire.depcache_segment_parents,
        wire.joins,
    )
    twins = find_twins(tokens, forest) if wire.depcache_version == 1 else None
    if twins is not None:
        parent, first_token = forest.parents[twins[0]], tokens[forest.starts[twins[0]]]
        raise PromptError(
            f"segments {twins[0]} and {twins[1]} have the same parent {parent} and both "
            f"start with token {first_token}: merge the tokens they share into one segment"
        )
    return forest


def read_input_ids(input_ids: Any) -> IntArray:
    """(num_tokens,) int64, a copy; PromptError when they are no flat list of token ids."""
    if isinstance(input_ids, list | tuple):
        for kind in set(map(type, input_ids)):
            if kind is not int and not issubclass(kind, np.integer):
                value = next(value for value in input_ids if type(value) is kind)
                raise PromptError(
                    f"{shorten(value)} is among the input_ids: send one flat list of ints, "
                    "one prompt per request"
                )
    elif not isinstance(input_ids, np.ndarray | array):
        raise PromptError(f"the input_ids are {shorten(input_ids)}: send one flat list of ints")
    tokens = np.asarray(input_ids)
    if tokens.ndim == 1 and not len(tokens):
        return np.zeros(0, np.int64)
    # Numbers beyond 64 bits have become objects or floats here.
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise PromptError(
            f"the input_ids have shape {tokens.shape} and type {tokens.dtype}: "
            f"send one flat list of ints from 0 to {MAX_TOKEN_ID}"
        )
    if not (tokens.min() >= 0 and tokens.max() <= MAX_TOKEN_ID):
        value = int(tokens.min() if tokens.min() < 0 else tokens.max())
        raise PromptError(f"{value} is among the input_ids: token ids are 0 to {MAX_TOKEN_ID}")
    return tokens.astype(np.int64)


def outline_of_paths(text: str, wire: WireText) -> Outline:
    """The outline of the paths that stand in `text`, which is as it is after the chat template.

    Raises PromptError unless they stand there exactly once.
    """
    system, _ = split_text(text, wire)
    return get_template(wire.template).outline(wire.paths, len(system))


def split_text(text: str, wire: WireText) -> tuple[str, str]:
    """The text before the flat paths (the system) and the text behind them (the task).

    Raises PromptError unless `text`, as it is after the chat template, contains the flat text
    of the paths exactly once.
    """
    flat_text = wire.flat_text
    start = text.find(flat_text)
    if start < 0:
        raise PromptError(
            f"the prompt does not contain the text of depcache_paths, {shorten(flat_text)}: "
            f"write the paths with template {wire.template!r}, unchanged, into one message"
        )
    if text.find(flat_text, start + 1) >= 0:
        count = max(2, text.count(flat_text))  # two that overlap are counted once
        raise PromptError(
            f"the prompt contains the text of depcache_paths {count} times, "
            f"{shorten(flat_text)}: it must be there exactly once"
        )
    return text[:start], text[start + len(flat_text) :]


def make_schema() -> dict[str, Any]:
    """The JSON Schema of the dependency data in `custom_params`, in all forms."""
    schema = TypeAdapter(WireIds | WireText | WireOutline).json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "DepCache custom_params, versions 1 and 2",
        **schema,
    }


if __name__ == "__main__":
    print(json.dumps(make_schema(), indent=2))
