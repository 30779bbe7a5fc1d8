# SPDX-License-Identifier: Apache-2.0
"""How much there is to read in a prompt with dependency data, told without reading it.

A thread costs a short prompt more than the reading: it is switched to and back, and while other
requests are in work it waits for the interpreter at each of these, 5 ms at a time. A long prompt
would keep everybody else waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from depcache.prompt.wire import PREFIX

MAX_SHORT = 2**16
"""Characters, and numbers in lists, of a prompt that is read at once: 2,000 tokens of trees have
40,000 in text form, read in 4 ms. SGLang takes longer to encode a chat of that length, and does
so on the event loop."""


def is_short(obj: Any) -> bool:
    """Whether a GenerateReqInput for one prompt, with dependency data, is read at once."""
    params = obj.sampling_params["custom_params"]
    given = [value for key, value in params.items() if str(key).startswith(PREFIX)]
    behind = params.get("depcache_behind")
    if isinstance(behind, list):
        given += behind
    return sum(map(_size, (obj.text, obj.input_ids, *given))) <= MAX_SHORT


def _size(value: Any) -> int:
    """The size of whatever a client sends; what is no text and no list is refused at a glance."""
    if isinstance(value, Mapping):  # an outline
        return sum(map(_size, value.values()))
    if isinstance(value, list) and value and isinstance(value[0], list):  # who sees whom
        return len(value) + sum(len(each) for each in value if isinstance(each, list))
    return len(value) if isinstance(value, str | list | tuple) else 0
