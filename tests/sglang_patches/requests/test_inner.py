# SPDX-License-Identifier: Apache-2.0
"""What the server says to itself reaches the scheduler, and comes from no client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from depcache.errors import PromptError
from depcache.prompt.wire import WireIds, parse_wire
from sglang_patches.requests.inner import KEYS, STORING, pass_on, take_inner

WIRE = WireIds(
    depcache_version=2,
    depcache_system_len=1,
    depcache_segment_lens=[2],
    depcache_segment_parents=[-1],
)


def test_attributes_become_keys_and_are_taken_out_again() -> None:
    params = {"depcache_version": 2, "other": 1}
    obj: Any = SimpleNamespace(sampling_params={"custom_params": params})
    pass_on(obj)
    assert obj.sampling_params == {"custom_params": params}
    setattr(obj, STORING, True)
    pass_on(obj)
    assert take_inner(obj.sampling_params["custom_params"]) == (params, {STORING: True})
    assert take_inner(params) == (params, {})
    assert take_inner([1]) == ([1], {})


@pytest.mark.parametrize("key", KEYS)
def test_a_client_cannot_say_it(key: str) -> None:
    with pytest.raises(PromptError, match=f"'{key}' is no key of version 2"):
        parse_wire({**WIRE.to_params(), key: True})
