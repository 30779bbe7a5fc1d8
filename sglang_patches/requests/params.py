# SPDX-License-Identifier: Apache-2.0
"""Where a request carries dependency data, whether it does, and whether it may be looked into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from depcache.errors import PromptError, shorten
from depcache.prompt.outline import PREFIX

MATCH = "depcache_match"
"""Our one key of a plain request: false, it is not searched for facts and tables; true, it is
searched for tables even where the setting `match_tables` is off."""


def custom_params_of(obj: Any) -> Any:
    """The `custom_params` of a GenerateReqInput for one prompt, None without any."""
    sampling_params = getattr(obj, "sampling_params", None)
    if not isinstance(sampling_params, Mapping):
        return None
    return sampling_params.get("custom_params")


def has_dependencies(obj: Any) -> bool:
    """Whether a GenerateReqInput for one prompt carries dependency data."""
    return has_keys(custom_params_of(obj))


def has_keys(custom_params: Any) -> bool:
    """Whether dependency data is among `custom_params`."""
    return isinstance(custom_params, Mapping) and any(
        isinstance(key, str) and key.startswith(PREFIX) and key != MATCH for key in custom_params
    )


def read_match(custom_params: Any) -> bool | None:
    """What a plain request says of being searched; None where it says nothing.

    Raises PromptError unless that is true or false.
    """
    if not isinstance(custom_params, Mapping):
        return None
    value = custom_params.get(MATCH)
    if value is not None and not isinstance(value, bool):
        raise PromptError(f"{MATCH} is {shorten(value)}: send true or false, or leave it out")
    return value


def without_match(custom_params: Mapping[Any, Any] | None) -> dict[Any, Any]:
    """The same parameters without this key."""
    return {key: value for key, value in (custom_params or {}).items() if key != MATCH}


def drop_match(obj: Any) -> None:
    """Take the key off a GenerateReqInput that is about to leave for the scheduler.

    Raises as `read_match`.
    """
    params = custom_params_of(obj)
    if isinstance(params, Mapping) and MATCH in params and not has_keys(params):
        read_match(params)
        obj.sampling_params = {
            **obj.sampling_params,
            "custom_params": without_match(params) or None,
        }
